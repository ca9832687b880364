// Package pgtools runs pg_dump and pg_restore of the version that a server needs: those of this host, with the rights of the app's
// owner and limited memory, or those in the container of the server.
package pgtools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/postgres/pgbin"
	"mulligan/snap/postgres/pglogin"
)

// Tools finds the installed versions of pg_dump and pg_restore, and runs them.
type Tools struct {
	Dirs   []string     // the folders to search; default: the usual folders and PATH
	Owner  privsep.User // runs the tools
	Inside *Inside      // the container of the server; nil: in none that can be entered
	// Private says that the owner may not enter the folder of the server's socket: the tools get it open.
	Private bool

	mu    sync.Mutex
	known map[string]Pair // by path
}

// Pair is a pg_dump and a pg_restore of one version.
type Pair struct {
	Major   int
	Version string // as pg_dump prints it: "15.18 (Debian …)"
	dir     string // "" for those in the server's container
	stamp   string // identifies the file of this version
}

// Inside reports whether the tools are those in the server's container.
func (p Pair) Inside() bool { return p.dir == "" }

// Find returns the tools that dump or load a database of a server with this major version: of that version or, if they are missing, of the
// next higher one. pid is the process of the server that serves a session, which may be on another host; Find looks beside its program too.
// A server that only Inside's Dial reaches is none that a tool of this host could connect to.
func (b *Tools) Find(ctx context.Context, major int, pid func() (int, error)) (Pair, error) {
	if b.Inside != nil && b.Inside.Dial != nil {
		return b.Inside.find(ctx, major)
	}
	t, err := b.find(ctx, major, func() string { return besideServer(pid, b.Owner) })
	if b.Inside == nil || err == nil && t.Major == major {
		return t, err
	}
	if own, e := b.Inside.find(ctx, major); e == nil {
		return own, nil
	}
	return t, err
}

// besideServer returns the folder of the server's own programs, which may have pg_dump too. It returns "" if the server runs on
// another host or in a container, or if users other than root and the app's owner could replace pg_dump or pg_restore there:
// the two run with the owner's rights, and the server may belong to somebody else.
func besideServer(pid func() (int, error), owner privsep.User) string {
	n, err := pid()
	if err != nil {
		return ""
	}
	dir := pgbin.ServerFolder(n)
	if dir == "" {
		return ""
	}
	for _, name := range []string{"pg_dump", "pg_restore"} {
		if !pgbin.Guarded(filepath.Join(dir, name), owner) {
			return ""
		}
	}
	return dir
}

// find returns the tools on this host. beside returns the folder of the server's own programs, or "".
func (b *Tools) find(ctx context.Context, server int, beside func() string) (Pair, error) {
	best := b.best(ctx, server, b.folders())
	if best.Major != server && len(b.Dirs) == 0 {
		if t, err := b.ask(ctx, beside()); err == nil && t.Major >= server && (best.Major == 0 || t.Major < best.Major) {
			best = t
		}
	}
	if best.Major == 0 {
		return best, errs.New(errs.Unsupported, "", "no pg_dump and pg_restore of PostgreSQL %d or newer are installed", server).
			WithHint("apt-get install postgresql-client-%d", server)
	}
	return best, nil
}

// folders returns the folders to search on any server.
func (b *Tools) folders() []string {
	if len(b.Dirs) > 0 {
		return b.Dirs
	}
	var dirs []string
	for _, pattern := range pgbin.Places { // first: a pg_dump in another folder may be a wrapper that chooses a version by a cluster's name
		list, _ := filepath.Glob(pattern) // the pattern is valid
		dirs = append(dirs, list...)
	}
	return append(dirs, filepath.SplitList(os.Getenv("PATH"))...)
}

// best returns the tools in dirs with the server's version or the next higher one. Its major version is 0 if there are none.
func (b *Tools) best(ctx context.Context, server int, dirs []string) (best Pair) {
	for _, dir := range dirs {
		t, err := b.ask(ctx, dir)
		if err == nil && t.Major >= server && (best.Major == 0 || t.Major < best.Major) {
			best = t
		}
		if best.Major == server {
			break // no other folder fits better, and running a wrapper is slow
		}
	}
	return best
}

// ask finds out the version of the tools in dir. It runs them with the rights of the app's owner, so it rejects tools that the
// owner may not run.
func (b *Tools) ask(ctx context.Context, dir string) (t Pair, err error) {
	if !filepath.IsAbs(dir) {
		return t, fs.ErrNotExist
	}
	path := filepath.Join(dir, "pg_dump")
	info, err := os.Stat(path)
	if err != nil {
		return t, err
	}
	if _, err := os.Stat(filepath.Join(dir, "pg_restore")); err != nil {
		return t, err
	}
	stamp := fmt.Sprint(info.Size(), info.ModTime())
	b.mu.Lock()
	defer b.mu.Unlock()
	if t, ok := b.known[path]; ok && t.stamp == stamp {
		return t, nil
	}
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	out := &head{limit: 4 << 10}
	cmd.Dir, cmd.Stdout = "/", out
	if err := b.Owner.Run(cmd, privsep.Options{NoNewPrivs: true}); err != nil {
		return t, err
	}
	t = parseVersion(out.String())
	if t.Major == 0 {
		return t, fmt.Errorf("%s prints no version", path)
	}
	t.dir, t.stamp = dir, stamp
	if b.known == nil {
		b.known = map[string]Pair{}
	}
	b.known[path] = t
	return t, nil
}

// digits returns the digits at the beginning of s: "17" of "17beta1".
func digits(s string) string {
	for i, c := range s {
		if c < '0' || c > '9' {
			return s[:i]
		}
	}
	return s
}

// Command is a run of one of the tools.
type Command struct {
	Tools Pair
	Name  string // pg_dump or pg_restore
	Args  []string
	File  []byte    // nil: none; the tool reads it as the last argument, or as its standard input in a container
	Out   io.Writer // its standard output
	// Harmless reports whether a tool that failed did everything that matters, given its standard error. Nil: never.
	Harmless func(stderr string) bool
}

// Patience are the settings that limit how long a server keeps the connection of a client that is gone, and how long it waits for a client that takes
// no rows: most servers do the former for two hours, and the latter without end.
var Patience = []string{"tcp_keepalives_idle=60", "tcp_keepalives_interval=10", "tcp_keepalives_count=6", "tcp_user_timeout=600000"}

// ToDatabase returns the argument that has a tool connect to a database. The kernel asks a server that sends nothing for a minute whether it
// is still there, as it does for the daemon's own connections; without that, a tool would notice after two hours that the network is gone.
func ToDatabase(name string) string {
	return "--dbname=keepalives_idle=60 keepalives_interval=60 dbname=" + pglogin.Quote(name)
}

// The paths of a tool's files. They are in memory and passed by descriptor, so a password is on no disk, in no argument and in
// no environment.
const (
	passPath   = "/proc/self/fd/3"
	filePath   = "/proc/self/fd/4"
	folderPath = "/proc/self/fd/5" // of the server's socket
)

// Run runs a tool to its end. The kernel kills a tool on this host when the daemon ends.
func (b *Tools) Run(ctx context.Context, login pglogin.Settings, c Command) error {
	password, err := login.Secret(ctx, b.Owner)
	if err != nil {
		return err
	}
	if c.Tools.Inside() {
		return b.Inside.run(ctx, login, password, c)
	}
	pass, err := Memory(b.Owner, "pass", []byte(passLine(password)))
	if err != nil {
		return err
	}
	defer pass.Close() // a file in memory
	file, err := Memory(b.Owner, "archive", c.File)
	if err != nil {
		return err
	}
	defer file.Close()
	given := []*os.File{pass, file}
	if b.Private {
		folder, err := os.OpenFile(login.Host, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer folder.Close() // nothing was written through it
		given, login.Host = append(given, folder), folderPath
	}
	if c.File != nil {
		c.Args = append(slices.Clip(c.Args), filePath)
	}
	bounded := boundedTool(filepath.Join(c.Tools.dir, c.Name), c.Args)
	cmd := exec.CommandContext(ctx, bounded[0], bounded[1:]...)
	cmd.Dir, cmd.Env, cmd.ExtraFiles, cmd.Stdout = "/", environment(login, passPath), given, c.Out
	stderr := &head{limit: 64 << 10}
	cmd.Stderr = stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the kernel kills the tool when this thread ends
	defer runtime.UnlockOSThread()
	err = b.Owner.Run(cmd, privsep.Options{NoNewPrivs: true})
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if !exit.Exited() {
			c.Harmless = nil
		}
		return c.failed(stderr, err)
	}
	return fmt.Errorf("%s: %w", c.Name, err)
}

// failed returns the error of a tool that ended with the error why, or nil if it did all that matters.
func (c Command) failed(stderr *head, why error) error {
	if c.Harmless != nil && c.Harmless(stderr.String()) {
		return nil
	}
	if said := stderr.first(); said != "" {
		return errs.New(errs.Failed, "", "%s: %s", c.Name, said)
	}
	return fmt.Errorf("%s: %w", c.Name, why)
}

// environment returns the environment of a tool that connects by libpq. It has nothing of the daemon's environment. passfile is the
// path of a file with the password.
func environment(l pglogin.Settings, passfile string) []string {
	env := []string{
		"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=/nonexistent", "PGHOST=" + l.Host, "PGPORT=" + l.Port, "PGUSER=" + l.User,
		"PGPASSFILE=" + passfile, "PGCONNECT_TIMEOUT=10", "PGAPPNAME=mulligan",
		"PGOPTIONS=-c statement_timeout=0 -c default_transaction_read_only=off -c " + strings.Join(Patience, " -c "),
	}
	for k, v := range l.TLS {
		if v != "" {
			env = append(env, "PG"+strings.ToUpper(k)+"="+v)
		}
	}
	return slices.Clip(env)
}

// passLine returns a password file with one password (libpq, "The Password File"), which is empty without a password.
func passLine(password string) string {
	if password == "" {
		return ""
	}
	return "*:*:*:*:" + strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(password) + "\n"
}

// Memory makes a file in memory that the owner may read.
func Memory(owner privsep.User, name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("mulligan-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	err = f.Chmod(0o600)
	if !owner.IsSelf() && err == nil {
		err = f.Chown(owner.UID, owner.GID)
	}
	if err == nil {
		_, err = f.Write(content)
	}
	if err != nil {
		_ = f.Close() // err is the error to return
		return nil, err
	}
	return f, nil
}

// MaxMemory bounds the data memory of pg_dump and pg_restore each, in bytes (RLIMIT_DATA).
const MaxMemory = 1 << 30

// boundedTool returns the command line that runs a tool with limited memory. A shell sets the limit on itself and executes the
// tool. This needs no privilege, and children of the tool inherit the limit.
func boundedTool(path string, args []string) []string {
	script := fmt.Sprintf(`ulimit -d %d; exec "$0" "$@"`, MaxMemory>>10)
	return append([]string{"/bin/sh", "-c", script, path}, args...)
}

// head keeps the first limit bytes that are written to it.
type head struct {
	bytes.Buffer
	limit int
}

func (t *head) Write(p []byte) (int, error) {
	t.Buffer.Write(p[:min(len(p), max(0, t.limit-t.Len()))])
	return len(p), nil
}

// first returns the first error message, without its SQL statement, which may contain secrets.
func (t *head) first() string {
	lines := strings.Split(t.String(), "\n")
	for _, line := range lines {
		if _, said, found := strings.Cut(line, "error: "); found && !strings.Contains(said, `"transaction_timeout"`) {
			return said
		}
	}
	return strings.TrimSpace(lines[0])
}
