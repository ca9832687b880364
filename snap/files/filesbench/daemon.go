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
)

// daemon is a real mulligand.
type daemon struct {
	cmd     *exec.Cmd
	client  *http.Client
	log     bytes.Buffer
	program string // the mulligan that was built with it
	socket  string
}

// startDaemon builds mulligand and mulligan in dir, and starts the daemon there.
func startDaemon(ctx context.Context, dir string) (*daemon, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	bin, socket, config := filepath.Join(dir, "mulligand"), filepath.Join(dir, "sock"), filepath.Join(dir, "mulligand.toml")
	d := &daemon{program: filepath.Join(dir, "mulligan"), socket: socket}
	for _, p := range []struct{ at, tags, from string }{{bin, "libvirt_dlopen", "mulligan/cmd/mulligand"}, {d.program, "nethttpomithttp2", "mulligan/cmd/mulligan"}} {
		if out, err := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-tags", p.tags, "-o", p.at, p.from).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w: %s", p.from, err, out)
		}
	}
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		return nil, err
	}
	d.cmd = exec.Command(bin, "--user", "--config", config, "--state-dir", filepath.Join(dir, "state"), "--socket", socket)
	d.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	d.cmd.Stderr = &d.log
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := d.call(ctx, "GET", "/healthz", nil, nil)
		if err == nil {
			return d, nil
		}
		if time.Now().After(end) {
			return nil, errors.Join(err, d.stop(), errors.New(d.log.String()))
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

// daemon measures the memory of a real mulligand that follows the tree, and the time that an agent's writes take meanwhile.
func (b *bench) daemon(ctx context.Context) error {
	if !b.wants("i") && !b.wants("l") {
		return nil
	}
	if err := b.close(); err != nil {
		return err
	}
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
	now, most, err2 := d.memory()
	b.table.add(row{key: "i", name: "memory of the daemon (RSS), 1000 files just changed", unit: "MB", ours: now, most: 120})
	b.table.add(row{name: "the most that it ever took (first capture)", unit: "MB", ours: most})
	followed, err3 := b.tree.writes()
	err = errors.Join(err, err2, err3, d.stop())
	after, err2 := b.tree.writes()
	alone = append(alone, after...)
	for _, q := range []struct {
		name string
		at   float64
	}{{"median", 0.5}, {"99th percentile", 0.99}} {
		without := us(quantile(alone, q.at))
		b.table.add(row{key: "l", name: fmt.Sprintf("an agent's write while the daemon follows, %s (alone: %s µs)", q.name, figure(without)),
			unit: "µs", ours: us(quantile(followed, q.at))})
	}
	return errors.Join(err, err2)
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
