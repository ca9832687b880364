package doctor

import (
	"os"
	"path/filepath"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit"
)

func TestOwnCluster(t *testing.T) {
	root := t.TempDir()
	data, proc := filepath.Join(root, "data"), filepath.Join(root, "proc")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	testkit.Need(t, "root")
	const uid = 4321
	must(os.MkdirAll(proc+"/17", 0o755))
	must(os.Mkdir(data, 0o700))
	must(os.Symlink(data, proc+"/17/cwd"))
	must(os.WriteFile(data+"/postmaster.pid", []byte("17\n"+data+"\n1\n5433\n/tmp/sockets\nlocalhost\n1 2\nready\n"), 0o600))
	must(os.Chown(data, uid, uid))
	for _, tt := range []struct {
		dsn, mode string
		uid       int
		found     bool
	}{
		{"postgres://me@/shop?host=/tmp/sockets&port=5433", "", uid, true},
		{"postgres://me@localhost:5433/shop", "auto", uid, true},
		{"postgres://me@127.0.0.1:5433/shop", "", uid, true},
		{"postgres://me@localhost/shop", "", uid, false},           // another port
		{"postgres://me@db.example.org:5433/shop", "", uid, false}, // another host
		{"postgres://me@localhost:5433/shop", "logical", uid, false},
		{"postgres://me@localhost:5433/shop", "", uid + 1, false}, // another user
		{"postgres://me@localhost:5433/shop", "", 0, false},
	} {
		want := ""
		if tt.found {
			want = data
		}
		if got := OwnCluster(proc, tt.uid, ipc.Database{Name: "shop", Driver: "postgres", DSN: tt.dsn, Mode: tt.mode}); got != want {
			t.Errorf("%s, mode %q, uid %d: %q, want %q", tt.dsn, tt.mode, tt.uid, got, want)
		}
	}
	must(os.Chmod(data, 0o777))
	if got := OwnCluster(proc, uid, ipc.Database{Driver: "postgres", DSN: "postgres://me@localhost:5433/shop"}); got != "" {
		t.Errorf("a folder that anybody writes to is offered: %s", got)
	}
}
