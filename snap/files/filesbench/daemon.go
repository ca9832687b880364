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

// daemon is a real mulligand that follows the tree for one app.
type daemon struct {
	cmd    *exec.Cmd
	client *http.Client
	log    bytes.Buffer
}

// startDaemon builds mulligand, starts it in dir and makes it follow tree.
func startDaemon(ctx context.Context, dir, tree string) (*daemon, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	bin, socket, config := filepath.Join(dir, "mulligand"), filepath.Join(dir, "sock"), filepath.Join(dir, "mulligand.toml")
	if out, err := exec.CommandContext(ctx, "go", "build", "-tags", "libvirt_dlopen", "-o", bin, "mulligan/cmd/mulligand").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build mulligand: %w: %s", err, out)
	}
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		return nil, err
	}
	d := &daemon{cmd: exec.Command(bin, "--user", "--config", config, "--state-dir", filepath.Join(dir, "state"), "--socket", socket)}
	d.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	d.cmd.Stderr = &d.log
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	if err := d.follow(ctx, tree); err != nil {
		return nil, errors.Join(err, d.stop(), errors.New(d.log.String()))
	}
	return d, nil
}

// follow registers the app and waits until the daemon watches its files.
func (d *daemon) follow(ctx context.Context, tree string) error {
	var app struct{ Following string }
	for end := time.Now().Add(time.Minute); d.call(ctx, "GET", "/healthz", nil, nil) != nil && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	err := d.call(ctx, "POST", "/api/apps", map[string]any{"slug": "bench", "workspace": tree, "auto": true}, nil)
	for end := time.Now().Add(10 * time.Minute); err == nil && app.Following != "watching"; time.Sleep(50 * time.Millisecond) {
		if err = d.call(ctx, "GET", "/api/apps/bench", nil, &app); time.Now().After(end) {
			err = errors.Join(err, fmt.Errorf("the daemon is still %s", app.Following))
		}
	}
	return err
}

// checkpoint makes a checkpoint, which includes every earlier change.
func (d *daemon) checkpoint(ctx context.Context) error {
	return d.call(ctx, "POST", "/api/apps/bench/checkpoints", map[string]any{}, nil)
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
	d, err := startDaemon(ctx, filepath.Join(b.dir, "daemon"), b.tree.dir)
	if err != nil {
		return err
	}
	err = errors.Join(d.checkpoint(ctx), b.tree.edit(min(1000, len(b.tree.files)/2)), d.checkpoint(ctx))
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
