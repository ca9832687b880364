package logical

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
)

// toolbox finds installed versions of pg_dump and pg_restore.
type toolbox struct {
	dirs  []string
	owner privsep.User // the user who runs a tool to find out its version

	mu    sync.Mutex
	known map[string]tool // by path
}

// tool is a pair of pg_dump and pg_restore in one folder.
type tool struct {
	dir     string // "" for those in the server's container
	major   int
	version string // as pg_dump prints it: "15.18 (Debian …)"
	stamp   string // identifies the file of this version
}

// places are the folders to search first. A pg_dump in another folder may be a wrapper that chooses a version by a cluster's name.
var places = pgbin.Places

// toolsFor returns the tools that dump or load a database of a server with this major version. c is a session on the server.
func (d *Driver) toolsFor(ctx context.Context, c *conn, major int) (tool, error) {
	t, err := d.tools.find(ctx, major, func() string { return c.programs(ctx, d.cfg.Owner) })
	if d.cfg.Inside == nil || err == nil && t.major == major {
		return t, err
	}
	if own, e := d.cfg.Inside.tool(ctx, major); e == nil {
		return own, nil
	}
	return t, err
}

// find returns the tools of the server's major version or, if they are missing, of the next higher one. beside returns the
// folder of the server's own programs, or "".
func (b *toolbox) find(ctx context.Context, server int, beside func() string) (tool, error) {
	best := b.best(ctx, server, b.folders())
	if best.major != server && len(b.dirs) == 0 {
		if t, err := b.ask(ctx, beside()); err == nil && t.major >= server && (best.major == 0 || t.major < best.major) {
			best = t
		}
	}
	if best.major == 0 {
		return best, errs.New(errs.Unsupported, "", "no pg_dump and pg_restore of PostgreSQL %d or newer are installed", server).
			WithHint("apt-get install postgresql-client-%d", server)
	}
	return best, nil
}

// folders returns the folders to search on any server.
func (b *toolbox) folders() []string {
	if len(b.dirs) > 0 {
		return b.dirs
	}
	var dirs []string
	for _, pattern := range places {
		list, _ := filepath.Glob(pattern) // the pattern is valid
		dirs = append(dirs, list...)
	}
	return append(dirs, filepath.SplitList(os.Getenv("PATH"))...)
}

// best returns the tools in dirs with the server's version or the next higher one. Its major version is 0 if there are none.
func (b *toolbox) best(ctx context.Context, server int, dirs []string) (best tool) {
	for _, dir := range dirs {
		t, err := b.ask(ctx, dir)
		if err == nil && t.major >= server && (best.major == 0 || t.major < best.major) {
			best = t
		}
		if best.major == server {
			break // no other folder fits better, and running a wrapper is slow
		}
	}
	return best
}

// ask finds out the version of the tools in dir. It runs them with the rights of the app's owner, so it rejects tools that the
// owner may not run.
func (b *toolbox) ask(ctx context.Context, dir string) (t tool, err error) {
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
	if err := b.owner.Run(cmd, privsep.Options{NoNewPrivs: true}); err != nil {
		return t, err
	}
	t = parseVersion(out.String())
	if t.major == 0 {
		return t, fmt.Errorf("%s prints no version", path)
	}
	t.dir, t.stamp = dir, stamp
	if b.known == nil {
		b.known = map[string]tool{}
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

// child is a run of one of the tools.
type child struct {
	tool tool
	name string
	args []string
	file []byte    // nil: none; the tool reads it as the last argument, or where it has none as its standard input
	out  io.Writer // its standard output
	// harmless reports whether a tool that failed did everything that matters, given its standard error. Nil: never.
	harmless func(stderr string) bool
}

// The paths of a child's files. They are in memory and passed by descriptor, so a password is on no disk, in no argument and in
// no environment.
const (
	passPath   = "/proc/self/fd/3"
	filePath   = "/proc/self/fd/4"
	folderPath = "/proc/self/fd/5" // of the server's socket
)

// run runs a tool to its end as the app's owner. The kernel kills the tool when the daemon ends.
func (d *Driver) run(ctx context.Context, c child) error {
	if c.tool.dir == "" {
		return d.runInside(ctx, c)
	}
	line, err := d.passLine(ctx)
	if err != nil {
		return err
	}
	pass, err := d.memory("pass", []byte(line))
	if err != nil {
		return err
	}
	defer pass.Close() // a file in memory
	file, err := d.memory("archive", c.file)
	if err != nil {
		return err
	}
	defer file.Close()
	given, login := []*os.File{pass, file}, *d.login
	if d.cfg.Private {
		folder, err := os.OpenFile(login.host, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer folder.Close() // nothing was written through it
		given, login.host = append(given, folder), folderPath
	}
	if c.file != nil {
		c.args = append(slices.Clip(c.args), filePath)
	}
	bounded := boundedTool(filepath.Join(c.tool.dir, c.name), c.args)
	cmd := exec.CommandContext(ctx, bounded[0], bounded[1:]...)
	cmd.Dir, cmd.Env, cmd.ExtraFiles, cmd.Stdout = "/", login.env(passPath), given, c.out
	stderr := &head{limit: 64 << 10}
	cmd.Stderr = stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the kernel kills the tool when this thread ends
	defer runtime.UnlockOSThread()
	err = d.cfg.Owner.Run(cmd, privsep.Options{NoNewPrivs: true})
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if !exit.Exited() {
			c.harmless = nil
		}
		return c.failed(stderr, err)
	}
	return fmt.Errorf("%s: %w", c.name, err)
}

// failed returns the error of a tool that ended with the error why, or nil if it did all that matters.
func (c child) failed(stderr *head, why error) error {
	if c.harmless != nil && c.harmless(stderr.String()) {
		return nil
	}
	if said := stderr.first(); said != "" {
		return errs.New(errs.Failed, "", "%s: %s", c.name, said)
	}
	return fmt.Errorf("%s: %w", c.name, why)
}

// passLine returns a password file with one password (libpq, "The Password File").
func (d *Driver) passLine(ctx context.Context) (string, error) {
	p, err := d.secret(ctx)
	if p == "" || err != nil {
		return "", err
	}
	return "*:*:*:*:" + strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(p) + "\n", nil
}

// memory makes a file in memory that the owner may read.
func (d *Driver) memory(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("mulligan-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	err = f.Chmod(0o600)
	if u := d.cfg.Owner; !u.IsSelf() && err == nil {
		err = f.Chown(u.UID, u.GID)
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
