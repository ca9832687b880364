package pgbin

import (
	"os"
	"path/filepath"
	"testing"

	"mulligan/privsep"
	"mulligan/testkit"
)

// nobody is a user without rights.
var nobody = privsep.User{UID: 65534, GID: 65534}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Programs that others than root and the owner could exchange are not run as the owner.
func TestGuarded(t *testing.T) {
	testkit.Need(t, "root")
	for what, tt := range map[string]struct {
		change func(dir, file string) error
		want   bool
	}{
		"root's":                     {func(string, string) error { return nil }, true},
		"the owner's":                {func(dir, file string) error { return os.Chown(file, nobody.UID, nobody.GID) }, true},
		"somebody's file":            {func(dir, file string) error { return os.Chown(file, 12345, 12345) }, false},
		"somebody's folder":          {func(dir, file string) error { return os.Chown(dir, 12345, 12345) }, false},
		"a file for all to write":    {func(dir, file string) error { return os.Chmod(file, 0o777) }, false},
		"a folder for all to write":  {func(dir, file string) error { return os.Chmod(dir, 0o777) }, false},
		"a folder, with sticky bit":  {func(dir, file string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, true},
		"a link to somebody's":       {func(dir, file string) error { return linkTo(t, file, 12345) }, false},
		"a link to one of the owner": {func(dir, file string) error { return linkTo(t, file, nobody.UID) }, true},
		"nothing":                    {func(dir, file string) error { return os.Remove(file) }, false},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(testkit.OpenDir(t), "bin")
			check(t, os.Chmod(filepath.Dir(dir), 0o755))
			check(t, os.Mkdir(dir, 0o755))
			file := filepath.Join(dir, "pg_dump")
			check(t, os.WriteFile(file, nil, 0o755))
			check(t, os.Chmod(file, 0o755))
			check(t, tt.change(dir, file))
			if got := Guarded(file, nobody); got != tt.want {
				t.Errorf("Guarded: %v", got)
			}
		})
	}
}

// linkTo replaces file by a link to another, which uid owns.
func linkTo(t *testing.T, file string, uid int) error {
	t.Helper()
	check(t, os.Rename(file, file+".real"))
	check(t, os.Chown(file+".real", uid, uid))
	return os.Symlink(file+".real", file)
}

// Only a server of this host has a folder of programs.
func TestServerFolder(t *testing.T) {
	for _, pid := range []int{os.Getpid(), 1 << 30} { // no server, and no process
		if got := ServerFolder(pid); got != "" {
			t.Errorf("process %d: %q", pid, got)
		}
	}
}
