package pgserver

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"mulligan/privsep"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// clusterTools runs programs as the owner of a test's cluster.
type clusterTools struct {
	Tools
	c *pgtest.Cluster
}

func (c clusterTools) Start(_ context.Context, out, problem io.Writer, program string, args ...string) (Process, error) {
	cmd := c.c.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, problem
	return running{cmd}, cmd.Start()
}

type running struct{ *exec.Cmd }

func (r running) Signal(sig syscall.Signal) error { return r.Process.Signal(sig) }

// TestControl compares what is read of a control file with what pg_controldata says, while the server runs and after its stop. A file with any other
// byte is not read, but given to pg_controldata.
func TestControl(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root", "postgres")
	c := pgtest.New(t, pgtest.Options{})
	p := Programs{Tools: clusterTools{c: c}, Owner: privsep.Self}
	file := filepath.Join(c.DataDir, "global", "pg_control")
	compare := func(state string) []byte {
		t.Helper()
		want, err := p.readControl(t.Context(), c.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := parseControl(text); !ok || got != want || got.State != state {
			t.Errorf("%v, %+v, and pg_controldata says %+v", ok, got, want)
		}
		if got, err := (Programs{Owner: privsep.Self}).ReadControl(t.Context(), c.DataDir); err != nil || got != want {
			t.Errorf("without programs: %+v, %v", got, err)
		}
		return text
	}
	c.Start(t)
	c.Psql(t, "postgres", "CREATE TABLE x (n int)")
	c.Psql(t, "postgres", "CHECKPOINT")
	compare("in production")
	c.Stop(t)
	text := compare(ShutDown)
	for at := range endOfKnown {
		text[at] ^= 1
		if c, ok := parseControl(text); ok {
			t.Errorf("with another byte at %d: %+v", at, c)
		}
		text[at] ^= 1
	}
	for _, n := range []int{0, 8, 300} {
		if _, ok := parseControl(text[:n]); ok {
			t.Errorf("of %d bytes", n)
		}
	}
}
