package cephtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/testkit"
)

// Gateway is Ceph's S3 server (radosgw) on a cluster.
type Gateway struct {
	Endpoint string // its URL

	cluster *Cluster
	cmd     *exec.Cmd
}

// gatewayConfiguration is what ceph.conf says of the gateway.
const gatewayConfiguration = `[client.rgw.a]
log file = %[1]s/rgw.log
rgw data = %[1]s/rgw
rgw frontends = beast endpoint=127.0.0.1:%[2]d
rgw enable usage log = false
rgw thread pool size = 32
`

// Gateway returns the cluster's gateway, which its first call starts: that takes about 10 seconds. A user of it has this key.
func (c *Cluster) Gateway(t testing.TB, key, secret string) *Gateway {
	t.Helper()
	testkit.Need(t, "radosgw")
	if c.gateway != nil {
		return c.gateway
	}
	port := testkit.Port(t)
	g := &Gateway{Endpoint: fmt.Sprintf("http://127.0.0.1:%d", port), cluster: c}
	if err := g.setUp(port); err != nil {
		t.Fatal(err)
	}
	g.Up(t)
	g.User(t, "tests", key, secret)
	c.gateway = g
	return g
}

func (g *Gateway) setUp(port int) error {
	c := g.cluster
	f, err := os.OpenFile(c.Conf, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, gatewayConfiguration, c.Dir, port)
	if err = errors.Join(err, f.Close(), os.Mkdir(c.path("rgw"), 0o700)); err != nil {
		return err
	}
	if _, err = c.Run("ceph-authtool", c.path("keyring"), "--gen-key", "-n", "client.rgw.a", "--cap", "mon", "allow rw", "--cap", "osd", "allow rwx"); err != nil {
		return err
	}
	_, err = c.Run("ceph", "auth", "import", "-i", c.path("keyring"))
	return err
}

// Up starts the gateway again, with the objects that it had.
func (g *Gateway) Up(t testing.TB) {
	t.Helper()
	if err := g.cluster.daemon("radosgw", "-f", "-n", "client.rgw.a"); err != nil {
		t.Fatal(err)
	}
	g.cmd = g.cluster.daemons[len(g.cluster.daemons)-1]
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.Endpoint, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
			return
		}
		if ctx.Err() != nil {
			text, _ := os.ReadFile(g.cluster.path("radosgw.out.log"))
			t.Fatalf("radosgw does not answer:\n%s", text)
		}
		time.Sleep(50 * time.Millisecond) // the server says nothing when it is ready
	}
}

// Kill ends the gateway as a power cut would.
func (g *Gateway) Kill() {
	if g.cmd == nil {
		return
	}
	_ = g.cmd.Process.Kill() // it may have ended
	_ = g.cmd.Wait()
	g.cluster.daemons = slices.DeleteFunc(g.cluster.daemons, func(c *exec.Cmd) bool { return c == g.cmd })
	g.cmd = nil
}

// User makes a user, or leaves the one that there is.
func (g *Gateway) User(t testing.TB, name, key, secret string) {
	t.Helper()
	if _, err := g.cluster.Run("radosgw-admin", "user", "info", "--uid", name); err == nil {
		return
	}
	g.Admin(t, fmt.Sprintf("user create --uid %[1]s --display-name %[1]s --access-key %s --secret-key %s", name, key, secret))
}

// Admin runs radosgw-admin in a test, with words between which there are spaces.
func (g *Gateway) Admin(t testing.TB, words string) string {
	t.Helper()
	out, err := g.cluster.Run("radosgw-admin", strings.Fields(words)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
