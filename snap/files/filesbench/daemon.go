package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mulligan/testkit/benchtable"
)

// daemon is a real mulligand.
type daemon struct {
	cmd     *exec.Cmd
	client  *http.Client
	log     bytes.Buffer
	dir     string
	program string // the mulligan that was built with it
	socket  string
}

// programs is the folder of mulligand and mulligan, which are built for the first daemon of a run.
var programs string

func build(ctx context.Context) error {
	for _, p := range []struct{ name, tags string }{{"mulligand", "libvirt_dlopen"}, {"mulligan", "nethttpomithttp2"}} {
		at := filepath.Join(programs, p.name)
		if _, err := os.Stat(at); err == nil {
			continue
		}
		if out, err := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-tags", p.tags, "-o", at, "mulligan/cmd/"+p.name).CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", p.name, err, out)
		}
	}
	return nil
}

// startDaemon starts a daemon whose state is in dir.
func startDaemon(ctx context.Context, dir string) (*daemon, error) {
	if err := errors.Join(build(ctx), os.MkdirAll(dir, 0o700)); err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "sock")
	d := &daemon{dir: dir, program: filepath.Join(programs, "mulligan"), socket: socket}
	d.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	if err := os.WriteFile(filepath.Join(dir, "mulligand.toml"), nil, 0o600); err != nil {
		return nil, err
	}
	return d, d.start(ctx)
}

// start starts the daemon, and waits until it answers.
func (d *daemon) start(ctx context.Context) error {
	d.cmd = exec.Command(filepath.Join(programs, "mulligand"), "--user", "--config", filepath.Join(d.dir, "mulligand.toml"), "--state-dir", filepath.Join(d.dir, "state"), "--socket", d.socket)
	d.cmd.Stderr = &d.log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := d.call(ctx, "GET", "/healthz", nil, nil)
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return errors.Join(err, d.stop(), errors.New(d.log.String()))
		}
	}
}

// add registers an app. With auto, the daemon makes its checkpoints at turns by itself; without, that is left to its default.
func (d *daemon) add(ctx context.Context, slug, tree string, auto bool) error {
	app := map[string]any{"slug": slug, "workspace": tree}
	if auto {
		app["auto"] = true
	}
	return d.call(ctx, "POST", "/api/apps", app, nil)
}

// awaitFollowing waits until the daemon says that it follows an app's files: "watching", or "noting" if it is left to its default.
func (d *daemon) awaitFollowing(ctx context.Context, slug, want string) error {
	var app struct{ Following string }
	for end := time.Now().Add(10 * time.Minute); app.Following != want; time.Sleep(50 * time.Millisecond) {
		if err := d.call(ctx, "GET", "/api/apps/"+slug, nil, &app); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("the daemon is still %q, want %s", app.Following, want)
		}
	}
	return nil
}

// checkpoint makes a checkpoint, which includes every earlier change.
func (d *daemon) checkpoint(ctx context.Context, slug string) error {
	return d.call(ctx, "POST", "/api/apps/"+slug+"/checkpoints", map[string]any{}, nil)
}

// command runs mulligan, and reads its answer into out.
func (d *daemon) command(ctx context.Context, out any, args ...string) error {
	cmd := exec.CommandContext(ctx, d.program, append([]string{"--socket", d.socket, "--json"}, args...)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	p, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("mulligan %s: %w: %s", strings.Join(args, " "), err, &complaint)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(p, out)
}

func (d *daemon) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		p, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(p)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://mulligan"+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, p)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(p, out)
	}
	return err
}

// memory returns the present and the highest RSS of the daemon, in MB.
func (d *daemon) memory() (now, most float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	for line := range strings.Lines(string(status)) {
		name, v, _ := strings.Cut(line, ":")
		to := map[string]*float64{"VmRSS": &now, "VmHWM": &most}[name]
		if to == nil {
			continue
		}
		kb, err := strconv.Atoi(strings.Fields(v)[0])
		if err != nil {
			return 0, 0, err
		}
		*to = float64(kb) / 1e3
	}
	return now, most, err
}

func (d *daemon) stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return d.cmd.Wait()
}

// daemon measures a real mulligand that follows the tree and makes its checkpoints by itself: its memory, the time that an agent's writes take meanwhile, a
// rollback as a user's command, and a restart.
func (b *bench) daemon(ctx context.Context) error {
	if !b.wants("ilpr") {
		return nil
	}
	if err := b.close(); err != nil {
		return err
	}
	b.journal = nil // the daemon has one
	alone, err := b.tree.writes()
	if err != nil {
		return err
	}
	d, err := startDaemon(ctx, filepath.Join(b.dir, "daemon"))
	if err != nil {
		return err
	}
	if err = d.add(ctx, "bench", b.tree.dir, true); err == nil {
		err = d.awaitFollowing(ctx, "bench", "watching")
	}
	if err == nil {
		err = errors.Join(d.checkpoint(ctx, "bench"), b.tree.edit(min(1000, len(b.tree.files)/2)), d.checkpoint(ctx, "bench"))
	}
	if err == nil {
		err = b.memory(d)
	}
	if err == nil {
		err = b.agentsWrites(d, alone)
	}
	if err == nil {
		err = b.rollback(ctx, d, "p", "`mulligan rollback` of an app that is followed, 10 files just changed", 60, nil)
	}
	if err == nil {
		err = b.restart(ctx, d)
	}
	return errors.Join(err, d.stop())
}

func (b *bench) memory(d *daemon) error {
	now, most, err := d.memory()
	client, err2 := os.Stat(d.program)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	return errors.Join(b.table.add("i", benchtable.Row{What: "size of the client, `mulligan`", Unit: "MB", Mulligan: float64(client.Size()) / 1e6, Below: 10}),
		b.table.add("i", benchtable.Row{What: "memory of the daemon (RSS), 1000 files just changed", Unit: "MB", Mulligan: now, Below: 120}),
		b.table.add("i", benchtable.Row{What: "the most that it ever took (first capture; the goal is for 300,000 files)", Unit: "MB", Mulligan: most, Below: 250}))
}

// agentsWrites measures writes beside the same without a daemon.
func (b *bench) agentsWrites(d *daemon, alone []time.Duration) error {
	followed, err := b.tree.writes()
	if err != nil {
		return err
	}
	for _, q := range []struct {
		name string
		at   float64
	}{{"median", 0.5}, {"99th percentile", 0.99}} {
		r := benchtable.Row{What: "an agent's write while the daemon follows, " + q.name, Unit: "µs", Mulligan: us(quantile(followed, q.at)),
			Others: []benchtable.Other{{Name: "without a daemon", Value: us(quantile(alone, q.at))}}}
		if err := b.table.add("l", r); err != nil {
			return err
		}
	}
	return nil
}

// restart measures how long it takes from a clean restart until the next checkpoint is made.
func (b *bench) restart(ctx context.Context, d *daemon) error {
	if !b.wants("r") {
		return nil
	}
	if err := d.stop(); err != nil {
		return err
	}
	took, err := timed(func() error { return errors.Join(d.start(ctx), d.checkpoint(ctx, "bench")) })
	if err != nil {
		return err
	}
	return b.table.add("r", benchtable.Row{What: "from a clean restart of the daemon to the next checkpoint", Mulligan: ms(took), Below: 3000})
}

// writes returns the times of 1000 writes such as an agent makes: some at a time, each of a whole file, then a pause.
func (t *tree) writes() (times []time.Duration, err error) {
	text := make([]byte, 4096)
	for i := range 1000 {
		if i%10 == 0 {
			time.Sleep(20 * time.Millisecond)
		}
		at := filepath.Join(t.dir, t.files[t.rand.IntN(len(t.files))])
		copy(text, fmt.Sprintf("// version %d\n", t.rand.Uint64()))
		took, err := timed(func() error { return os.WriteFile(at, text, 0o644) })
		if err != nil {
			return nil, err
		}
		times = append(times, took)
	}
	return times, nil
}
