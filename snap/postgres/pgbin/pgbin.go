// Package pgbin finds PostgreSQL's programs on this host.
package pgbin

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"mulligan/privsep"
)

// Places are patterns of the folders where distributions install the programs of each version.
var Places = []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin"}

// ServerFolder returns the folder of the program of process pid. It returns "" unless that is a Postgres server whose file has
// the same path on this host.
func ServerFolder(pid int) string {
	process := fmt.Sprintf("/proc/%d/exe", pid) // if the server is on another host, pid is any process of this host or none
	path, err := os.Readlink(process)
	if err != nil || filepath.Base(path) != "postgres" {
		return ""
	}
	running, err := os.Stat(process)
	if err != nil {
		return ""
	}
	if here, err := os.Stat(path); err != nil || !os.SameFile(running, here) {
		return "" // the path belongs to another mount namespace
	}
	return filepath.Dir(path)
}

// Guarded reports whether only root and owner can change the file at path.
func Guarded(path string, owner privsep.User) bool {
	target, err := filepath.EvalSymlinks(path)
	if err != nil || target != path && !Guarded(target, owner) {
		return false
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if !othersMayNotWrite(dir, owner) {
			return false
		}
		if dir == "/" {
			return othersMayNotWrite(target, owner)
		}
	}
}

// othersMayNotWrite reports whether path belongs to root or owner, and only they may write to it. A sticky folder that
// everybody may write to is allowed, because others cannot rename or remove the entries of root and owner in it.
func othersMayNotWrite(path string, owner privsep.User) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	uid := int(info.Sys().(*syscall.Stat_t).Uid)
	if uid != 0 && uid != os.Geteuid() && uid != owner.UID {
		return false
	}
	return info.Mode()&0o022 == 0 || info.IsDir() && info.Mode()&fs.ModeSticky != 0
}
