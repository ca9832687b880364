package pgtest

import (
	"os"
	"strings"
	"testing"
)

func TestCluster(t *testing.T) {
	c := Start(t, Options{Settings: map[string]string{"work_mem": "7MB"}})
	if got := c.Psql(t, "postgres", "SHOW work_mem"); got != "7MB" {
		t.Errorf("work_mem is %s", got)
	}
	c.Psql(t, "postgres", "CREATE DATABASE app")
	c.Psql(t, "app", "CREATE TABLE t(i int); INSERT INTO t SELECT generate_series(1, 1000)")
	c.Stop(t)
	if c.Running() {
		t.Error("it runs after Stop")
	}
	c.Start(t)
	c.Psql(t, "app", "INSERT INTO t VALUES (1001)")
	memory := sharedMemory([]int{c.run.cmd.Process.Pid})
	if len(memory) == 0 {
		t.Error("no shared memory was found")
	}
	c.Kill(t)
	for _, path := range memory {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	c.Start(t)
	if got := c.Psql(t, "app", "SELECT count(*) FROM t"); got != "1001" {
		t.Errorf("after a kill there are %s rows", got)
	}
	if _, err := c.TryPsql("app", "SELECT * FROM nowhere"); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a query of a missing table says %v", err)
	}
	if dsn := c.TCP("a b", "p@ss/w", "x"); !strings.HasPrefix(dsn, "postgres://a%20b:p%40ss%2Fw@127.0.0.1:") {
		t.Error(dsn)
	}
}
