package detect

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/appfile"
)

func TestParseDotenv(t *testing.T) {
	const data = "A=1\n# B=2\n export C = 'x y' # no\nD=\"a#b\"\nE=a#b # c\nF\nG=\r\nH='open\n"
	want := []variable{{"A", "1"}, {"C", "x y"}, {"D", "a#b"}, {"E", "a#b"}, {"G", ""}, {"H", "open"}}
	if got := parseDotenv(data); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestDatabaseSpec(t *testing.T) {
	for in, want := range map[string]string{
		"postgres://u@h/d":             "postgres://u@h/d",
		"postgresql+psycopg2://u:p@/d": "postgresql://u:p@/d",
		"sqlite:///data/x.db":          "sqlite:data/x.db",
		"sqlite:////srv/shop/data/x":   "sqlite:data/x",
		"sqlite:////var/x.db":          "sqlite:/var/x.db",
		"sqlite+aiosqlite:///x.db":     "sqlite:x.db",
		"sqlite://./x.db?cache=shared": "sqlite:x.db",
		"sqlite:x.db":                  "sqlite:x.db",
		"sqlite3:x.db":                 "sqlite:x.db",
		"file:./dev.db?mode=ro":        "sqlite:dev.db",
		"no url":                       "no url",
	} {
		if got, _ := databaseSpec("/srv/shop", in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// Databases of URLs with a scheme of a server are never files, and the other way round.
func FuzzDatabaseSpec(f *testing.F) {
	f.Add("sqlite:///../x.db")
	f.Fuzz(func(t *testing.T, url string) {
		for _, v := range parseDotenv("DATABASE_URL=" + url) {
			spec, isFile := databaseSpec("/srv/shop", v.value)
			if db, err := appfile.ParseDatabase(spec); err == nil && isFile != (db.Driver == "sqlite") {
				t.Errorf("%q: %+v", v.value, db)
			}
		}
	})
}

const header = "SQLite format 3\x00 and so on"

func TestDetect(t *testing.T) {
	dir := t.TempDir()
	outside := t.TempDir()
	write(t, outside, "secret.db", header)
	for name, content := range map[string]string{
		"app.db": header, "sub/app.db": header, "sub/deep/data.sqlite3": header, "日本": header,
		"app.db-wal": "not it", "empty.db": "", "notes.txt": "SQLite format 3",
		"node_modules/x.db": header, ".venv/y.db": header, "sub/.git/z.db": header,
		"odd\nname.db": header,
		".env":         "DATABASE_URL=sqlite:///app.db\nREDIS_URL=redis://localhost\nDB_URL=sqlite:///later.db\nPG_URL=s3cret\nOTHER=postgres://x/y\n",
		".env.local":   "DATABASE_URL=postgres://u:pw@h/shop\n",
	} {
		write(t, dir, name, content)
	}
	if err := os.Symlink(filepath.Join(outside, "secret.db"), filepath.Join(dir, "link.db")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "linkdir")); err != nil {
		t.Fatal(err)
	}
	found, err := App(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, db := range found.Databases {
		got = append(got, db.Name+" "+db.Driver+" "+db.DSN+" "+db.Source)
	}
	want := []string{
		"app sqlite app.db ",
		"app-2 sqlite sub/app.db ",
		"data sqlite sub/deep/data.sqlite3 ",
		"db sqlite 日本 ",
		"redis redis redis://localhost REDIS_URL in .env",
		"shop postgres postgres://u:pw@h/shop DATABASE_URL in .env.local",
	}
	if !slices.Equal(got, want) || found.Git != NoRepository {
		t.Errorf("found %q", got)
	}
	said := strings.Join(found.Unprotected, "\n")
	for _, part := range []string{"odd\nname.db is protected as a plain file", "later.db (DB_URL in .env)", "PG_URL in .env names no database"} {
		if !strings.Contains(said, part) {
			t.Errorf("%q is not said in %q", part, said)
		}
	}
	if strings.Contains(said, "s3cret") {
		t.Errorf("a secret is told: %q", said)
	}
}

func TestDetectIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range maxDatabases + 3 {
		write(t, dir, fmt.Sprintf("%02d.db", i), header)
	}
	write(t, dir, strings.Repeat("d/", maxDepth+1)+"x.db", header)
	found, err := App(t.Context(), dir)
	if err != nil || len(found.Databases) != maxDatabases || len(found.Unprotected) != 1 {
		t.Errorf("%d databases, %q, %v", len(found.Databases), found.Unprotected, err)
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A .git file may name a repository outside of the folder.
func TestDetectGit(t *testing.T) {
	for content, want := range map[string]Repository{
		"":                              RepositoryOutside,
		"gitdir: ../repo/.git/x\n":      RepositoryOutside,
		"gitdir: /srv/repo/.git/wt/x\n": RepositoryOutside,
		"gitdir: meta/repo\n":           RepositoryInside,
	} {
		dir := t.TempDir()
		write(t, dir, ".git", content)
		found, err := App(t.Context(), dir)
		if err != nil || found.Git != want {
			t.Errorf("%q: %v, %v", content, found.Git, err)
		}
	}
	dir := t.TempDir()
	write(t, dir, ".git", "gitdir: "+dir+"/meta\n")
	if found, err := App(t.Context(), dir); err != nil || found.Git != RepositoryInside {
		t.Errorf("by an absolute path: %v, %v", found.Git, err)
	}
}

func TestSlug(t *testing.T) {
	for in, want := range map[string]string{
		"/srv/shop": "shop", "/srv/My Shop!": "my-shop", "/srv/日本": "app", "/": "app",
		"/srv/" + strings.Repeat("x", 100): strings.Repeat("x", 48),
	} {
		if got := Slug(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}
