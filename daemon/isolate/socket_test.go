package isolate

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/privsep"
)

// TestSocketBeyondLimit has a control socket whose path is longer than an address may be.
func TestSocketBeyondLimit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("a", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "control.sock")
	f, err := listen(path, privsep.User{UID: os.Getuid(), GID: os.Getgid()})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}
