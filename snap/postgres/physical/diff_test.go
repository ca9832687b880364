package physical

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/snap"
)

// What changed is told in SQL, between two markers and since one; the copies that
// this takes leave nothing behind.
func TestDiff(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.Psql(t, "app", `CREATE TABLE items (id serial PRIMARY KEY, name text NOT NULL, price int DEFAULT 1); CREATE TABLE gone (x int); CREATE TABLE same (x int);
		INSERT INTO items (name) SELECT 'item ' || g FROM generate_series(1, 300) g; INSERT INTO gone VALUES (1), (2); INSERT INTO same VALUES (1)`)
	s.Psql(t, "postgres", "CREATE DATABASE other")
	capture(t, s, "db-a")
	s.Psql(t, "app", `DROP TABLE gone; ALTER TABLE items DROP COLUMN price; ALTER TABLE items ADD COLUMN note text; ALTER TABLE items ALTER name TYPE varchar(99);
		DELETE FROM items WHERE id > 100; CREATE TABLE fresh (y text DEFAULT 'z'); INSERT INTO fresh VALUES ('a'); UPDATE same SET x = 7; CREATE VIEW seen AS SELECT y FROM fresh`)
	s.Psql(t, "postgres", "DROP DATABASE other; CREATE ROLE rolled")
	capture(t, s, "db-b")
	want := []string{
		"delete app/public.gone: DROP TABLE \"public\".\"gone\"; it had 2 rows",
		"delete other: DROP DATABASE \"other\"",
		"create app/public.fresh: CREATE TABLE \"public\".\"fresh\" (y text DEFAULT 'z'::text); 1 row",
		"modify app/public.items: ALTER TABLE \"public\".\"items\" ALTER COLUMN name character varying(99) NOT NULL (was name text NOT NULL); " +
			"ALTER TABLE \"public\".\"items\" DROP COLUMN price; ALTER TABLE \"public\".\"items\" ADD COLUMN note text; 100 rows, were 300 (200 fewer)",
		"modify app/public.same: 1 row, as many as before, with other content",
		"create app/public.seen: CREATE VIEW \"public\".\"seen\" AS SELECT fresh.y FROM public.fresh;",
		"create role rolled: CREATE ROLE \"rolled\"",
	}
	for _, to := range []snap.SnapshotID{"", "db-b"} {
		list, err := s.driver.Diff(t.Context(), "db-a", to, nil)
		check(t, err)
		var got []string
		for _, c := range list {
			got = append(got, fmt.Sprintf("%s %s: %s", c.Operation, c.Path, c.Summary))
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("to %q got\n%s\nwant\n%s", to, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if forks, err := os.ReadDir(s.driver.store.path("forks")); err != nil || len(forks) > 0 {
		t.Errorf("forks are left: %v, %v", forks, err)
	}
	if histories, err := filepath.Glob(s.driver.store.path("archive", "*.history")); err != nil || len(histories) > 0 {
		t.Errorf("timelines were used up: %v, %v", histories, err)
	}
	s.restore(t, "db-a", "db-b") // and nothing is in the way
}

// A receipt speaks of rows in the words of the dry run before it.
func testReceiptLikeDryRun(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.Psql(t, "app", `CREATE TABLE more (x int); CREATE TABLE fewer (x int); CREATE TABLE same (x int); CREATE TABLE other (x int); CREATE TABLE gone (x int);
		INSERT INTO more VALUES (1); INSERT INTO fewer SELECT generate_series(1, 9); INSERT INTO same VALUES (1); INSERT INTO other VALUES (1); INSERT INTO gone VALUES (1), (2)`)
	capture(t, s, "db-a")
	s.Psql(t, "app", "INSERT INTO more VALUES (2), (3); DELETE FROM fewer WHERE x > 4; UPDATE other SET x = 2; DROP TABLE gone; CREATE TABLE fresh AS SELECT 1 AS x")
	capture(t, s, "db-b")
	dry, err := s.driver.Diff(t.Context(), "db-a", "", nil)
	check(t, err)
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-a", Base: "db-b"})
	check(t, err)
	receipt, _ := sw.Changes(100)
	check(t, sw.Undo(t.Context()))
	check(t, sw.Finish(t.Context()))
	for _, list := range [][]snap.Change{dry, receipt} {
		said := map[string]string{}
		for _, c := range list {
			said[c.Path] = strings.ReplaceAll(c.Summary, " (x integer)", "")
		}
		for path, want := range map[string]string{"app/public.more": "3 rows, were 1 (2 more)", "app/public.fewer": "4 rows, were 9 (5 fewer)", "app/public.same": "",
			"app/public.other": "1 row, as many as before, with other content", "app/public.gone": `DROP TABLE "public"."gone"; it had 2 rows`, "app/public.fresh": `CREATE TABLE "public"."fresh"; 1 row`} {
			if said[path] != want {
				t.Errorf("of %s: %q, want %q", path, said[path], want)
			}
		}
	}
}
