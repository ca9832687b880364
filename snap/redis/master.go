package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"mulligan/errs"
	"mulligan/snap/cas"
)

// errMoved means that the server's data is not at the expected position.
var errMoved = errors.New("the server moved on")

// master makes this process the server's replication master. It sends one snapshot to the first replica that sends the
// password.
type master struct {
	net.Listener
	password string
	size     int64
	from     *position    // the position where the replica's own data must end; nil: any
	begin    func() error // called before the first byte is sent
	content  func() (io.Reader, error)
	silence  time.Duration
}

// callBack bounds the time until the server connects to its new master.
const callBack = 15 * time.Second

// lead makes the server load the stored snapshot. If from is not nil and the server's data does not end at from, lead returns
// errMoved and leaves the server unchanged. It calls begin when the data is certain to be replaced, and before that happens.
// The plan has the settings to be restored afterwards.
func (d *Driver) lead(ctx context.Context, p *plan, root cas.Root, from *position, begin func() error) error {
	c, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.supported(); err != nil {
		return err
	}
	meta, _, err := parseMeta(root)
	if err != nil {
		return err
	}
	m, err := d.listen(c)
	if err != nil {
		return err
	}
	defer m.Close() // an error loses nothing
	m.from, m.begin, m.size = from, begin, meta.Size
	m.content = func() (io.Reader, error) { return d.content(ctx, root) }
	err = d.follow(ctx, c, p, m)
	after, cancel := d.after(ctx)
	defer cancel()
	return errs.Also(err, d.letGo(after, p))
}

// after returns a context with a time limit for restoring settings, because ctx may have ended, and a server that sends one
// byte at a time must not block for ever.
func (d *Driver) after(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 2*d.cfg.Timeout)
}

// listen opens the port to which the server will connect, on this process's address towards the server.
func (d *Driver) listen(c *conn) (*master, error) {
	host := "127.0.0.1"
	if a, ok := c.LocalAddr().(*net.TCPAddr); ok {
		host = a.IP.String()
		if !a.IP.IsLoopback() && d.server.tls != nil {
			return nil, errs.New(errs.Unsupported, "", "a server on another host that is reached with TLS cannot be restored").
				WithHint("run the daemon on the server's own host")
		}
	}
	if _, direct := c.LocalAddr().(*net.TCPAddr); d.cfg.Dial != nil && !direct {
		return nil, errs.New(errs.Unsupported, "", "the server is in a container that has no way to this host, which its restore needs").
			WithHint("protect the volume of its data instead")
	}
	v, err := c.config("tls-replication")
	if err != nil || v == "yes" {
		if err == nil {
			err = errs.New(errs.Unsupported, "", "the server wants TLS from its master (tls-replication)").
				WithHint("set tls-replication to no for the time of the restore")
		}
		return nil, err
	}
	var l net.Listener
	if b := d.cfg.Callback; b != nil {
		l, err = b.listen()
	} else {
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, err
	}
	return &master{Listener: l, password: rand.Text(), silence: d.cfg.Timeout}, nil
}

// follow makes the server replicate from m, and waits until the server has loaded the snapshot.
func (d *Driver) follow(ctx context.Context, c *conn, p *plan, m *master) error {
	if err := d.note(c, p, m); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("follow"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	finished := make(chan struct{})
	go func() { defer close(finished); done <- m.serve(ctx) }()
	defer func() { cancel(); <-finished }()
	for _, command := range [][]string{
		{"CONFIG", "SET", "masterauth", m.password}, {"CONFIG", "SET", "masteruser", ""},
		{"REPLICAOF", p.Lead.Host, p.Lead.Port},
	} {
		if _, err := c.do(command...); err != nil {
			return err
		}
	}
	return await(ctx, c, m.silence, done)
}

// note records in the plan the settings that letGo restores.
func (d *Driver) note(c *conn, p *plan, m *master) (err error) {
	l := &lead{}
	if l.Host, l.Port, err = net.SplitHostPort(m.Addr().String()); err != nil {
		return err
	}
	if l.MasterAuth, err = c.config("masterauth"); err != nil {
		return err
	}
	if l.User, err = c.config("masteruser"); err != nil {
		return err
	}
	next := *p
	next.Lead = l
	if err := d.records.Save(&next); err != nil {
		return err
	}
	p.Lead = l
	return nil
}

const poll = 10 * time.Millisecond

// await waits until the server has loaded the snapshot, or has made no progress for silence. done reports the end of the
// sending.
func await(ctx context.Context, c *conn, silence time.Duration, done <-chan error) error {
	last, since := "", time.Now()
	for {
		state, loaded, err := c.following()
		switch {
		case err != nil:
			return err
		case loaded:
			return nil
		case state != last:
			last, since = state, time.Now()
		case time.Since(since) > silence:
			return errs.New(errs.Failed, "", "the server did not load the snapshot that it was sent").WithHint("look into the server's log")
		}
		select {
		case err := <-done:
			return err
		case <-time.After(poll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// following returns the progress of the server's replication from its master, and whether the snapshot is loaded.
func (c *conn) following() (state string, loaded bool, err error) {
	r, err := c.info("replication")
	if err != nil {
		return "", false, err
	}
	p, err := c.info("persistence")
	state = fmt.Sprint(r["master_link_status"], r["master_sync_read_bytes"], p["loading"], p["loading_loaded_bytes"])
	return state, r["master_link_status"] == "up" && p["loading"] == "0", err
}

// letGo makes the server a master again if it replicates from the plan's master, and restores its settings. It may be called
// after a crash.
func (d *Driver) letGo(ctx context.Context, p *plan) error {
	if p.Lead == nil {
		return nil
	}
	c, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	r, err := c.info("replication")
	if err != nil {
		return err
	}
	if r["role"] == "slave" && (r["master_host"] != p.Lead.Host || r["master_port"] != p.Lead.Port) {
		return errs.New(errs.Conflict, "", "the server was made a replica of %s", net.JoinHostPort(r["master_host"], r["master_port"])).
			WithHint("REPLICAOF NO ONE makes it a master again")
	}
	commands := [][]string{{"CONFIG", "SET", "masterauth", p.Lead.MasterAuth}, {"CONFIG", "SET", "masteruser", p.Lead.User}}
	if r["role"] == "slave" {
		commands = append([][]string{{"REPLICAOF", "NO", "ONE"}}, commands...)
	}
	for _, command := range commands {
		if _, err := c.do(command...); err != nil {
			return err
		}
	}
	next := *p
	next.Lead = nil
	if err := d.records.Save(&next); err != nil {
		return err
	}
	p.Lead = nil
	return nil
}

// awaitPersisted waits until a restart of the server would load its present data. A loaded snapshot becomes the dump file at
// once, but the server rewrites its append-only file in the background.
func (d *Driver) awaitPersisted(ctx context.Context) error {
	c, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.saveIfNeeded(); err != nil {
		return err
	}
	for rewriting := false; ; {
		p, err := c.info("persistence")
		if err != nil {
			return err
		}
		was := rewriting
		rewriting = p["aof_rewrite_in_progress"] == "1"
		busy := rewriting || p["aof_rewrite_scheduled"] == "1" || p["rdb_bgsave_in_progress"] == "1"
		failed := p["aof_enabled"] == "1" && p["aof_last_bgrewrite_status"] != "ok"
		switch {
		case failed && !rewriting && (was || !busy): // until a rewrite has ended, the status is an earlier one's; after a failure, the next is scheduled
			return errs.New(errs.Failed, "", "the server cannot write its append-only file").WithHint("look into the server's log: is its disk full?")
		case !busy:
			return nil
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// saveIfNeeded makes the server write its dump file if loading the snapshot did not.
func (c *conn) saveIfNeeded() error {
	load, err := c.config("repl-diskless-load")
	if err != nil {
		return err
	}
	save, err := c.config("save")
	if err != nil || save == "" || load == "" || load == "disabled" {
		return err
	}
	_, err = c.do("BGSAVE", "SCHEDULE")
	return err
}
