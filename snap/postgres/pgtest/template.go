package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// templates are clusters that were made and never run: a copy of one is there
// sooner than a new one.
var templates struct {
	sync.Mutex
	dir  string
	made map[string]string // by what they were made with
	end  *os.File          // its other end is the remover's; never closed but by our end
}

// template is the data folder of a cluster like the one that is asked for.
func template(t testing.TB, c *Cluster, o Options) string {
	t.Helper()
	templates.Lock()
	defer templates.Unlock()
	key := fmt.Sprint(c.Bin, o.Init, o.Databases, o.Slim)
	if dir := templates.made[key]; dir != "" {
		return dir
	}
	if templates.dir == "" {
		startTemplates(t, c)
	}
	dir := filepath.Join(templates.dir, fmt.Sprint(len(templates.made)))
	args := []string{"-D", dir, "-U", Superuser, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"}
	c.command(t, "initdb", append(args, o.Init...)...)
	var sql []string
	for _, db := range o.Databases {
		sql = append(sql, "CREATE DATABASE "+db)
	}
	if o.Slim {
		sql = append(sql, "UPDATE pg_database SET datistemplate = false WHERE datname = 'template0'", "DROP DATABASE template0")
	}
	if len(sql) > 0 {
		single := c.Command("postgres", "--single", "-D", dir, "-F", "postgres")
		single.Stdin = strings.NewReader(strings.Join(sql, "\n") + "\n")
		if out, err := single.CombinedOutput(); err != nil || strings.Contains(string(out), "ERROR") {
			t.Fatalf("make databases: %v\n%s", err, out)
		}
	}
	templates.made[key] = dir
	return dir
}

// startTemplates makes the templates' folder, which a shell removes when this
// process ends, however that may be.
func startTemplates(t testing.TB, c *Cluster) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pgtemplates-")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	if c.cred != nil {
		must(t, os.Chown(dir, int(c.cred.Uid), int(c.cred.Gid)))
	}
	r, w, err := os.Pipe()
	must(t, err)
	remover := exec.Command("/bin/sh", "-c", `trap "" INT TERM HUP; read x; rm -rf "$1"`, "sh", dir)
	remover.Stdin = r
	must(t, remover.Start())
	must(t, r.Close())
	templates.dir, templates.made, templates.end = dir, map[string]string{}, w
}
