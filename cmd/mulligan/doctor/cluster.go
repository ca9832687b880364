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

// OwnCluster is the data folder of the Postgres server behind a database that is logical
// or of no mode yet, if the user with that uid runs this server; else "". proc is the
// folder of the processes.
func OwnCluster(proc string, uid int, db ipc.Database) string {
	network, addr := address(db)
	if db.Driver != "postgres" || db.DataDir != "" || db.Mode == "logical" || uid == 0 || addr == "" {
		return ""
	}
	links, _ := filepath.Glob(proc + "/[0-9]*/cwd") // the pattern is good
	for _, link := range links {
		dir, err := os.Readlink(link)
		if err == nil && isOwn(dir, uid) && serves(dir, network, addr) {
			return dir
		}
	}
	return ""
}

// isOwn reports whether dir is a folder of the user's that nobody else may write to.
func isOwn(dir string, uid int) bool {
	info, err := os.Lstat(dir)
	return err == nil && info.IsDir() && info.Mode().Perm()&^0o750 == 0 && int(info.Sys().(*syscall.Stat_t).Uid) == uid
}

// serves reports whether the postmaster.pid in dir says that a server listens there: its
// fourth line is the port, its fifth a folder with a socket (miscadmin.h).
func serves(dir, network, addr string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "postmaster.pid"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close() // it was only read
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

// same reports whether two paths name one thing, as /var/run and /run do.
func same(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return a == b || err1 == nil && err2 == nil && os.SameFile(x, y)
}

// MarkerAdvice says how checkpoints of a database become marks in its server's log.
func MarkerAdvice(dir string, db ipc.Database) string {
	return "the cluster in " + dir + " is yours: with #data_dir=" + dir + " behind the URL of database " + db.Name +
		" (a superuser's), checkpoints of it are marks in the server's log, and the whole cluster goes back"
}
