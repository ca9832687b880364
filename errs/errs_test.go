package errs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An error of a system call is told in words, without the call's name.
func TestPlain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	_, lstat := os.Lstat(path)
	_, open := os.Open(path)
	for _, c := range []struct {
		err  error
		want string
	}{
		{lstat, "init: look at " + path + ": no such file or directory"},
		{os.Mkdir(filepath.Join(path, "x"), 0o700), "init: make the folder " + path + "/x: no such file or directory"},
		{open, "init: open " + path + ": no such file or directory"},
	} {
		if got := Wrap(Failed, "init", c.err).Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	e := &Error{Kind: Failed, Message: "it did not work", Err: lstat}
	if got := e.Text(); !strings.HasPrefix(got, "it did not work: look at ") {
		t.Errorf("%q", got)
	}
}
