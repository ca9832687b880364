package rbd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/virt"
)

// Access is how the daemon reaches a cluster. What is empty is taken from the domain's definition, and else from Ceph's own defaults.
type Access struct {
	Conf    string // path of ceph.conf
	User    string // of cephx, without "client."
	Keyring string // path of the keyring with the user's key
}

// The times that a call of the program rbd may take. A call of a cluster that is away would wait for five minutes.
const (
	lookLimit = 15 * time.Second // for a look at a domain: the daemon's start waits for it
	callLimit = 90 * time.Second // longer than Ceph waits for a client that died (30 s), before it takes the image's lock from it
	longLimit = 30 * time.Minute // for calls whose time grows with the size of an image
)

// cluster runs the program rbd. It is safe for concurrent use.
type cluster struct {
	args atomic.Pointer[[]string] // how to reach the cluster; nil before the domain was opened
}

// argumentsFor returns how to reach the cluster that a domain's definition names.
func argumentsFor(a Access, v virt.Volume) (args []string) {
	add := func(name, value string) {
		if value != "" {
			args = append(args, name, value)
		}
	}
	add("--conf", cmp.Or(v.Config, a.Conf))
	add("--id", cmp.Or(a.User, v.User))
	add("--keyring", a.Keyring)
	add("-m", strings.Join(v.Monitors, ","))
	return args
}

// rbd runs the program and returns what it prints.
func (c *cluster) rbd(ctx context.Context, limit time.Duration, args ...string) ([]byte, error) {
	var out bytes.Buffer
	err := c.stream(ctx, limit, &out, args...)
	return out.Bytes(), err
}

// stream runs the program and writes what it prints to out.
func (c *cluster) stream(ctx context.Context, limit time.Duration, out io.Writer, args ...string) error {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "rbd", slices.Concat(*c.args.Load(), args)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"} // and no CEPH_ARGS
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	var problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &problem
	runtime.LockOSThread() // the kernel kills the program when this thread ends
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if err == nil {
		return nil
	}
	what := "rbd " + strings.Join(args[:min(2, len(args))], " ")
	if errors.Is(err, exec.ErrNotFound) {
		return errs.New(errs.Unsupported, "", "the program rbd is not installed").WithHint("install it (Debian: ceph-common)")
	}
	if ctx.Err() != nil {
		e := errs.New(errs.Unavailable, "", "Ceph did not answer within %s: %s", time.Since(begun).Round(time.Second), what).WithHint("see whether the cluster is well: ceph -s")
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			e = errs.New(errs.Unavailable, "", "%s was interrupted", what)
		}
		e.Err = ctx.Err()
		return e
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && crashed(exit) {
		e := errs.New(errs.Failed, "", "%s: %s", what, crashLine(problem.String()))
		e.Err = fmt.Errorf("%w (%s)", errCrashed, exit)
		return e
	}
	e := errs.New(errs.Failed, "", "%s: %s", what, lastLine(problem.String()))
	e.Err = err
	if exit != nil { // its code is an errno
		switch syscall.Errno(exit.ExitCode()) {
		case unix.ENOENT:
			e.Kind = errs.NotFound
		case unix.EBUSY, unix.ENOTEMPTY:
			e.Kind = errs.Busy
		case unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ECONNREFUSED:
			e.Kind = errs.Unavailable
		case unix.EACCES, unix.EPERM:
			e.Kind, e.Hint = errs.Denied, "name a cephx user that may use the pool, and its keyring, in mulligand.toml: [ceph]"
		case unix.ENOSPC, unix.EDQUOT:
			e.Hint = "make room in the cluster, or delete checkpoints: `mulligan prune`"
		}
	}
	if strings.Contains(problem.String(), "couldn't connect to the cluster") {
		e.Kind, e.Hint = errs.Unavailable, "see whether the cluster is well (ceph -s), and whether mulligand has a cephx user and its keyring: [ceph] in mulligand.toml"
	}
	return e
}

// errCrashed is in the error of a call whose program crashed.
var errCrashed = errors.New("the program rbd crashed")

// crashed reports whether a program ended by a fault of its own, and not because somebody killed it.
func crashed(exit *exec.ExitError) bool {
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && slices.Contains([]syscall.Signal{unix.SIGABRT, unix.SIGSEGV, unix.SIGBUS, unix.SIGILL, unix.SIGFPE}, status.Signal())
}

// crashLine returns the line of an error output that says why Ceph's program crashed, with what an exception says in the line after it. Hundreds of lines
// of the program's log may follow.
func crashLine(text string) string {
	for _, sign := range []string{"FAILED ceph_assert", "terminate called", "Caught signal"} {
		i := strings.Index(text, sign)
		if i < 0 {
			continue
		}
		begin := strings.LastIndexByte(text[:i], '\n') + 1
		line, rest, _ := strings.Cut(text[begin:], "\n")
		what, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
		if strings.HasPrefix(what, "what():") {
			line += ", " + what
		}
		return lastLine(line)
	}
	return lastLine(text)
}

// lastLine returns the last line of an error output, without the time and thread with which Ceph's log begins.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	line := lines[len(lines)-1]
	if _, rest, ok := strings.Cut(line, " -1 "); ok {
		line = rest
	}
	return line
}

// crashPauses are the times that a program which changes nothing is left alone after it crashed, before it runs once more. Ceph's programs crash rarely, on a
// machine that is busy, and then more than once in a row was seen.
var crashPauses = []time.Duration{0, 200 * time.Millisecond, time.Second}

// read runs the program, which changes nothing, and decodes the JSON that it prints. A program that crashed is run again, up to three times.
func (c *cluster) read(ctx context.Context, v any, args ...string) error {
	args = append(args, "--format", "json")
	out, err := c.rbd(ctx, callLimit, args...)
	for _, pause := range crashPauses {
		if !errors.Is(err, errCrashed) {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
		out, err = c.rbd(ctx, callLimit, args...)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, v); err != nil {
		return errs.New(errs.Failed, "", "rbd %s printed something unexpected: %v", args[0], err)
	}
	return nil
}

// imageInfo is what Ceph says of an image.
type imageInfo struct {
	ID     string `json:"id"`
	Size   int64  `json:"size"` // bytes
	Parent struct {
		Pool      string `json:"pool"`
		Namespace string `json:"pool_namespace"`
		Image     string `json:"image"`
		Snapshot  string `json:"snapshot"`
	} `json:"parent"`
	Features []string `json:"features"`
}

func (c *cluster) info(ctx context.Context, image string) (i imageInfo, err error) {
	err = c.read(ctx, &i, "info", image)
	return i, err
}

// rbdSnapshot is a snapshot in Ceph's list.
type rbdSnapshot struct {
	ID   uint64 `json:"id"`
	Name string `json:"name"`
	Size int64  `json:"size"` // of the image when it was made, in bytes
}

func (c *cluster) snapshots(ctx context.Context, image string) (list []rbdSnapshot, err error) {
	err = c.read(ctx, &list, "snap", "ls", image)
	return list, err
}

// watchers returns the addresses of the clients that have an image open.
func (c *cluster) watchers(ctx context.Context, image string) (list []string, err error) {
	var s struct {
		Watchers []struct {
			Address string `json:"address"`
		} `json:"watchers"`
	}
	err = c.read(ctx, &s, "status", image)
	for _, w := range s.Watchers {
		list = append(list, w.Address)
	}
	return list, err
}

// snap makes a snapshot of an image.
func (c *cluster) snap(ctx context.Context, limit time.Duration, image, name string) error {
	_, err := c.rbd(ctx, limit, "snap", "create", "--no-progress", image+"@"+name)
	return err
}

// dropSnap removes a snapshot; one that does not exist is no error. One with clones stays until its last clone is gone, under a name
// of Ceph's own.
func (c *cluster) dropSnap(ctx context.Context, image, name string) (was bool, err error) {
	_, err = c.rbd(ctx, callLimit, "snap", "rm", "--no-progress", image+"@"+name)
	if errs.KindOf(err) == errs.NotFound {
		return false, nil
	}
	return err == nil, err
}

// clone makes an image that reads as a snapshot does, and copies nothing.
func (c *cluster) clone(ctx context.Context, image, name, to string) error {
	_, err := c.rbd(ctx, callLimit, "clone", "--rbd-default-clone-format", "2", image+"@"+name, to)
	return err
}

// dropImage removes an image; one that does not exist is no error.
func (c *cluster) dropImage(ctx context.Context, image string) (was bool, err error) {
	_, err = c.rbd(ctx, longLimit, "rm", "--no-progress", image)
	if errs.KindOf(err) == errs.NotFound {
		return false, nil
	}
	return err == nil, err
}

// toTrash hides an image that has clones, which read on. Ceph lets it be removed once they are gone.
func (c *cluster) toTrash(ctx context.Context, image string) error {
	_, err := c.rbd(ctx, callLimit, "trash", "mv", image)
	return err
}

// The owner of an image is noted in its metadata, for the daemons of all hosts.
const ownerKey = "mulligan.owner"

func (c *cluster) owner(ctx context.Context, image string) (string, error) {
	out, err := c.rbd(ctx, callLimit, "image-meta", "get", image, ownerKey)
	if errs.KindOf(err) == errs.NotFound {
		return "", nil
	}
	return strings.TrimSpace(string(out)), err
}

func (c *cluster) own(ctx context.Context, image, owner string) error {
	_, err := c.rbd(ctx, callLimit, "image-meta", "set", image, ownerKey, owner)
	return err
}

func (c *cluster) disown(ctx context.Context, image string) error {
	_, err := c.rbd(ctx, callLimit, "image-meta", "remove", image, ownerKey)
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	return err
}

// extents are ranges of an image that were written, and of which some now read as zeros.
type extents struct{ all, data []imagefile.Extent }

// diff returns what was written to an image between two of its snapshots. From "" is all that it holds, also by the image that it is a
// clone of, and to "" is the present. With whole, it returns whole objects, of which any part was written: that is quick.
func (c *cluster) diff(ctx context.Context, image, from, to string, whole bool) (e extents, err error) {
	args := []string{"diff"}
	if from != "" {
		args = append(args, "--from-snap", from)
	}
	if whole {
		args = append(args, "--whole-object")
	}
	if to != "" {
		image += "@" + to
	}
	var list []struct {
		Offset, Length int64
		Exists         any
	}
	if err := c.read(ctx, &list, append(args, image)...); err != nil {
		return e, err
	}
	for _, x := range list {
		at := imagefile.NewExtent(x.Offset, x.Length)
		e.all = append(e.all, at)
		if exists, err := strconv.ParseBool(asText(x.Exists)); err != nil || exists {
			e.data = append(e.data, at)
		}
	}
	return e, nil
}

// asText returns a JSON value as text: releases of Ceph write truth values as texts, or as truth values.
func asText(v any) string {
	if b, ok := v.(bool); ok {
		return strconv.FormatBool(b)
	}
	s, _ := v.(string)
	return s
}

// export writes all that an image, or a snapshot of it, reads as.
func (c *cluster) export(ctx context.Context, spec string, to io.Writer) error {
	return c.stream(ctx, longLimit, to, "export", "--no-progress", spec, "-")
}
