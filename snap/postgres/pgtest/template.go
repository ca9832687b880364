package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"mulligan/testkit"
)

// templates has the paths of clusters that were initialized and never started, by the options that made them: copying one is faster
// than initdb. They are kept in the cache of tests.
var templates = struct {
	sync.Mutex
	made map[string]string
}{made: map[string]string{}}

// template returns the data folder of a template with the options o, and makes it if necessary.
func template(t testing.TB, c *Cluster, o Options) string {
	t.Helper()
	args := append([]string{"-U", Superuser, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"}, o.Init...)
	var sql []string
	for _, db := range o.Databases {
		sql = append(sql, "CREATE DATABASE "+db)
	}
	if o.Slim {
		sql = append(sql, "UPDATE pg_database SET datistemplate = false WHERE datname = 'template0'", "DROP DATABASE template0")
	}
	if strings.Contains(strings.Join(o.Init, " "), "/") { // a path, which only this test has
		return initialize(t, c, args, sql)
	}
	key, err := testkit.Key(c.path("postgres"), append(args, sql...)...)
	must(t, err)
	templates.Lock()
	defer templates.Unlock()
	if dir := templates.made[key]; dir != "" {
		return dir
	}
	dir, err := testkit.Kept(fmt.Sprintf("postgres-%d-%s", os.Geteuid(), key), func(dir string) error {
		return testkit.CopyTree(initialize(t, c, args, sql), filepath.Join(dir, "data"))
	})
	must(t, err)
	templates.made[key] = filepath.Join(dir, "data")
	return templates.made[key]
}

// initialize makes a cluster in a temporary folder, which the server's user reaches, and returns its data folder.
func initialize(t testing.TB, c *Cluster, args, sql []string) string {
	t.Helper()
	data := filepath.Join(mkdir(t, os.TempDir(), "pgtemplate-", c.cred), "data")
	c.command(t, "initdb", append(args, "-D", data)...)
	if len(sql) > 0 {
		single := c.Command("postgres", "--single", "-D", data, "-F", "postgres")
		single.Stdin = strings.NewReader(strings.Join(sql, "\n") + "\n")
		if out, err := single.CombinedOutput(); err != nil || strings.Contains(string(out), "ERROR") {
			t.Fatalf("make databases: %v\n%s", err, out)
		}
	}
	return data
}
