package logical

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mulligan/snap"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// source is PostgreSQL's own source, of the distribution's package for this server.
func source(t *testing.T, major string) string {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"parts", "lists/partial", "src"} {
		check(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	check(t, os.Chmod(dir, 0o755)) // psql is the server's user
	check(t, os.Chmod(filepath.Dir(dir), 0o755))
	files, err := filepath.Glob("/etc/apt/sources.list.d/debian.sources")
	check(t, err)
	if len(files) == 0 {
		t.Fatal("no /etc/apt/sources.list.d/debian.sources that names where sources are")
	}
	text, err := os.ReadFile(files[0])
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, "parts", "x.sources"), []byte(strings.ReplaceAll(string(text), "Types: deb\n", "Types: deb-src\n")), 0o644))
	apt := func(args ...string) {
		cmd := exec.Command("apt-get", append([]string{"-q", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=" + filepath.Join(dir, "parts"),
			"-o", "Dir::State::lists=" + filepath.Join(dir, "lists")}, args...)...)
		cmd.Dir = filepath.Join(dir, "src")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("apt-get %v: %v\n%s", args, err, out)
		}
	}
	apt("update")
	release, err := exec.Command("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME").Output()
	check(t, err)
	apt("source", "--download-only", "postgresql-"+major+"/"+strings.TrimSpace(string(release)))
	tars, err := filepath.Glob(filepath.Join(dir, "src", "*.orig.tar.*"))
	check(t, err)
	if len(tars) != 1 {
		t.Fatalf("the source package has %v", tars)
	}
	out, err := exec.Command("tar", "xf", tars[0], "-C", dir, "--no-same-owner", "--strip-components=1", "--wildcards", "*/src/test/regress/*").CombinedOutput()
	if err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	return filepath.Join(dir, "src/test/regress")
}

// scripts are the regression test's, in their order.
func scripts(t *testing.T, regress string) (list []string) {
	t.Helper()
	schedule, err := os.ReadFile(filepath.Join(regress, "parallel_schedule"))
	check(t, err)
	for line := range strings.Lines(string(schedule)) {
		if names, ok := strings.CutPrefix(line, "test: "); ok {
			list = append(list, strings.Fields(names)...)
		}
	}
	return list
}

// The database that PostgreSQL's own regression test leaves behind has nearly everything that a database
// can have. It goes back and forward, and pg_dump says the same of it.
func TestLongRegressionDatabase(t *testing.T) {
	testkit.NeedLong(t)
	c := startCluster(t, pgtest.Options{Settings: map[string]string{"max_prepared_transactions": "2", "max_worker_processes": "8"}})
	c.Psql(t, "postgres", `CREATE DATABASE regression TEMPLATE template0;
		ALTER DATABASE regression SET lc_messages TO 'C'; ALTER DATABASE regression SET timezone_abbreviations TO 'Default';`)
	regress := source(t, filepath.Base(filepath.Dir(c.Bin)))
	for _, name := range scripts(t, regress) {
		if slices.Contains([]string{"infinite_recurse", "database"}, name) {
			continue
		}
		cmd := c.Command("psql", "-X", "-q", "-h", c.Socket, "-p", strconv.Itoa(c.Port), "-U", pgtest.Superuser, "-d", "regression", "-f", filepath.Join(regress, "sql", name+".sql"))
		cmd.Dir = c.Socket
		cmd.Env = append(cmd.Env, "PG_ABS_SRCDIR="+regress, "PG_LIBDIR=/nowhere", "PG_DLSUFFIX=.so", "PG_ABS_BUILDDIR="+c.Socket, "PGTZ=PST8PDT", "PGDATESTYLE=Postgres, MDY")
		if err := cmd.Run(); err != nil { // a script that fails is no matter: what it made is there
			t.Logf("%s: %v", name, err)
		}
	}
	s := &subject{c: c, db: "regression"}
	s.open(t, c.DSN("regression"))
	there, before := s.capture(t), byName(s.dump(t, ""))
	c.Psql(t, "regression", "DROP TABLE public.onek CASCADE; CREATE TABLE public.more (i int); DELETE FROM public.tenk2")
	back := s.capture(t)
	after := byName(s.dump(t, ""))
	s.restore(t, there)
	sameLines(t, "the regression database", byName(s.dump(t, "")), before)
	s.restore(t, back)
	sameLines(t, "what came after it", byName(s.dump(t, "")), after)
	s.leftovers(t)
}

// byName is a dump in which tables that inherit, and the rows of all tables, have their columns in
// the order of their names: no dump keeps the places of columns that a parent got later.
func byName(dump string) string {
	var out, table, rows []string
	var rank []int
	for line := range strings.SplitSeq(dump, "\n") {
		names, isCopy := strings.CutSuffix(line, ") FROM stdin;")
		switch {
		case rank != nil && line == `\.`:
			slices.Sort(rows)
			out, rows, rank = append(append(out, rows...), line), nil, nil
		case rank != nil:
			rows = append(rows, pick(strings.Split(line, "\t"), rank))
		case isCopy && strings.HasPrefix(line, "COPY "):
			head, list, _ := strings.Cut(names, " (")
			columns := strings.Split(list, ", ")
			for i := range columns {
				rank = append(rank, i)
			}
			slices.SortFunc(rank, func(a, b int) int { return strings.Compare(columns[a], columns[b]) })
			out = append(out, head+" "+pick(columns, rank))
		case strings.HasPrefix(line, "CREATE TABLE ") || strings.HasPrefix(line, "CREATE FOREIGN TABLE "):
			table = []string{line}
		case table != nil && strings.HasPrefix(line, "INHERITS ("):
			for i := range table {
				table[i] = strings.TrimSuffix(table[i], ",")
			}
			slices.Sort(table[1:])
			out, table = append(append(out, table...), line), nil
		case table != nil && (line == "" || strings.HasSuffix(line, ";")):
			out, table = append(append(out, table...), line), nil
		case table != nil:
			table = append(table, line)
		default:
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// sorted is a dump's lines in their own order: comments and rights on columns come in the order of those.
func sorted(dump string) string {
	lines := strings.Split(dump, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// pick gives the values in the order of rank.
func pick(values []string, rank []int) string {
	var list []string
	for _, i := range rank {
		list = append(list, values[i])
	}
	return strings.Join(list, "\t")
}

// A parent that got a column later: the child's columns cannot be given back in their places, and are
// given back by their names. The capture says so.
func testInherited(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	s.as(t, `CREATE TABLE public.p (a int, q text DEFAULT 'q'); CREATE TABLE public.p2 (a int, x int);
		CREATE TABLE public.c (d int DEFAULT 4, b int DEFAULT 7, CHECK (b < 100)) INHERITS (public.p, public.p2);
		CREATE TABLE public.g (h int) INHERITS (public.c);
		CREATE TABLE public.late (z int, a int, n int NOT NULL GENERATED ALWAYS AS (z * 2) STORED, x int); ALTER TABLE public.late INHERIT public.p2;
		ALTER TABLE public.p ADD COLUMN z int DEFAULT 26; ALTER TABLE public.c ALTER COLUMN z SET DEFAULT 27, ALTER COLUMN d SET STATISTICS 7, ALTER COLUMN b SET STATISTICS 8;
		COMMENT ON COLUMN public.c.z IS 'last'; COMMENT ON COLUMN public.c.b IS 'own'; COMMENT ON COLUMN public.late.x IS 'x'; COMMENT ON COLUMN public.late.z IS 'z';
		GRANT SELECT (z, b) ON public.c TO "ROLE_ro"; GRANT SELECT (x) ON public.late TO "ROLE_ro"; GRANT SELECT (a, z) ON public.late TO "ROLE_ro";
		INSERT INTO public.c (a, q, x, d, b, z) VALUES (1, 'one', 2, 3, 4, 5), (11, NULL, 12, 13, 14, 15); INSERT INTO public.g (a, h, z) VALUES (21, 22, 23);
		INSERT INTO public.late (z, a, x) VALUES (1, 2, 3)`)
	id := snap.SnapshotID("db-inherited")
	made, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
	check(t, err)
	if said := strings.Join(made.Warnings, " "); !strings.Contains(said, "public.c (a, q, z, x, d, b instead of a, q, x, d, b, z)") || !strings.Contains(said, "public.g (") {
		t.Errorf("the capture says %q", said)
	}
	before := sorted(byName(s.dump(t, "")))
	s.as(t, `UPDATE public.c SET b = 50; ALTER TABLE public.p ADD COLUMN zz int; DROP TABLE public.late`)
	back, after := s.capture(t), sorted(byName(s.dump(t, "")))
	s.restore(t, id)
	sameLines(t, "after the rollback", sorted(byName(s.dump(t, ""))), before)
	if list, err := s.driver.Diff(t.Context(), id, "", nil); err != nil || len(list) > 0 {
		t.Errorf("what was restored differs: %+v, %v", list, err)
	}
	again, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-inherited-2"})
	check(t, err)
	if again.Hash != made.Hash || len(again.Warnings) > 0 {
		t.Errorf("what was restored is captured as %v (%q), and was %v", again.Hash, again.Warnings, made.Hash)
	}
	s.restore(t, back)
	sameLines(t, "after redo", sorted(byName(s.dump(t, ""))), after)
	s.leftovers(t)
}
