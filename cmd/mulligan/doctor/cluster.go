package doctor

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
)

// OwnCluster returns the data folder of the Postgres server that serves db, if the user
// uid owns the folder and runs the server, and if db could be physical but has no mode
// or data folder yet. Otherwise it returns "". proc is the path of /proc.
func OwnCluster(proc string, uid int, db ipc.Database) string {
	network, addr := address(db)
	if db.Driver != "postgres" || db.DataDir != "" || db.Mode == "logical" || uid == 0 || addr == "" {
		return ""
	}
	links, _ := filepath.Glob(proc + "/[0-9]*/cwd") // the pattern is valid
	for _, link := range links {
		dir, err := os.Readlink(link)
		if err == nil && isOwn(dir, uid) && serves(dir, network, addr) {
			return dir
		}
	}
	return ""
}

// isOwn reports whether dir is a folder that uid owns, with a mode of at most 0750.
func isOwn(dir string, uid int) bool {
	info, err := os.Lstat(dir)
	return err == nil && info.IsDir() && info.Mode().Perm()&^0o750 == 0 && int(info.Sys().(*syscall.Stat_t).Uid) == uid
}

// serves reports whether a server with the data folder dir listens at addr, according to
// postmaster.pid. The fourth line of that file is the port, the fifth the folder of a socket (miscadmin.h).
func serves(dir, network, addr string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "postmaster.pid"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close() // the file was only read
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	lines := bytes.Split(text, []byte("\n"))
	if err != nil || len(lines) < 6 {
		return false
	}
	port, socket := string(lines[3]), string(lines[4])
	if network == "unix" {
		return same(filepath.Join(socket, ".s.PGSQL."+port), addr)
	}
	host := strings.TrimSuffix(addr, ":"+port)
	return host != addr && slices.Contains([]string{"localhost", "127.0.0.1", "[::1]"}, host)
}

// same reports whether two paths lead to the same file, as /var/run and /run do.
func same(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return a == b || err1 == nil && err2 == nil && os.SameFile(x, y)
}

// MarkerAdvice returns a sentence that says how checkpoints of db become marks in its server's log.
func MarkerAdvice(dir string, db ipc.Database) string {
	return "the cluster in " + dir + " is yours: with #data_dir=" + dir + " behind the URL of database " + db.Name +
		" (a superuser's), checkpoints of it are marks in the server's log, and the whole cluster goes back"
}
