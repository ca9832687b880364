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

// templates are clusters that were initialized and never started: copying a template is faster than initdb.
var templates struct {
	sync.Mutex
	dir  string
	made map[string]string // paths of the templates, by the options that made them
	end  *os.File          // write end of a pipe to the remover; only the end of this process closes it
}

// template returns the data folder of a template with the options o, and makes it if necessary.
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

// startTemplates makes the folder for templates. A shell removes it when this process ends in any way.
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
