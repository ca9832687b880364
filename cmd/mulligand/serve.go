package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"mulligan/daemon"
	"mulligan/daemon/config"
	"mulligan/daemon/gate"
	"mulligan/daemon/page"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/systemd"
)

// closeTimeout is how long the end waits for operations under way. What it
// cuts short, the next start finishes or undoes.
const closeTimeout = 60 * time.Second

// answerTimeout is how long clients may then take to read their answers.
const answerTimeout = 3 * time.Second

// How many connections the socket takes: in all, and from one user.
const (
	maxConns        = 4096
	maxConnsPerUser = 1024
)

// serve runs the daemon until ctx ends.
func serve(ctx context.Context, cfg config.Config, log *slog.Logger) (err error) {
	// The socket first: it is also the lock against a second daemon.
	l, err := listen(cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	d, err := daemon.Open(ctx, options(cfg, log))
	if err != nil {
		return err
	}
	if cfg.AppsDir != "" {
		d.WatchFiles(ctx, cfg.AppsDir)
	}
	conns := ipc.NewConns(maxConns, maxConnsPerUser)
	srv := ipc.NewHTTPServer(d.Handler(), conns)
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(conns.Listen(l)) }()
	if cfg.HTTP != "" {
		d.Gate().Provide(cfg.HTTP, gate.TLS{Cert: cfg.TLSCert, Key: cfg.TLSKey}) // the socket is served in any case
	} else if err := d.Gate().Resume(); err != nil {
		log.Warn("pages that are open must be opened anew: mulligan ui", "err", err)
	}
	go systemd.Watchdog(ctx, func() error { return d.Alive(ctx) })
	if err := systemd.Ready(); err != nil {
		log.Warn("systemd was not told", "err", err)
	}
	log.Info("ready", "socket", cfg.Socket, "state", cfg.StateDir, "version", fullVersion())

	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	log.Info("stopping")
	_ = systemd.Stopping() // nobody is left to care
	return errs.Also(err, shut(d, srv))
}

// options are those of the daemon.
func options(cfg config.Config, log *slog.Logger) daemon.Options {
	opt := daemon.Options{
		StateDir: cfg.StateDir, Socket: cfg.Socket, User: cfg.User, Version: fullVersion(),
		StopTimeout: cfg.StopTimeout, QuietGap: cfg.QuietGap, NoTitles: !cfg.Titles, MaxFiles: cfg.Limits.MaxFiles, MaxForks: cfg.Limits.MaxForks, MaxBytes: cfg.Limits.MaxBytes, RehearseMax: cfg.RehearseMax, Log: log,
		Page: page.Handler(), Hosts: cfg.Hosts, UserLimits: limits(cfg.Quota), GuestLimits: limits(cfg.Guests.Quota),
	}
	opt.Ceph = daemon.Ceph(cfg.Ceph)
	for _, b := range cfg.Buckets {
		opt.Buckets = append(opt.Buckets, daemon.Bucket(b))
	}
	if cfg.Guests.Allow {
		opt.Guests = &daemon.Guests{User: cfg.Guests.User, Dir: cfg.Guests.Dir}
	}
	return opt
}

func limits(q config.Quota) daemon.Limits {
	return daemon.Limits{Apps: q.Apps, Checkpoints: q.Checkpoints, Bytes: q.Bytes, Rate: q.RequestsPerSecond, Concurrent: q.Concurrent}
}

// shut ends the daemon and then what serves it. Closing the daemon waits for
// operations, and ends the event feeds; what is left then is answers being read.
func shut(d *daemon.Daemon, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := d.Close(ctx)
	brief, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if srv.Shutdown(brief) != nil {
		err = errs.Also(err, srv.Close()) // clients that are slow are cut off
	}
	return errs.Also(err, d.Gate().Close(brief))
}

// listen takes the socket that systemd opened for the daemon, or makes its own.
func listen(cfg config.Config) (net.Listener, error) {
	given, err := systemd.Listeners()
	if err != nil {
		return nil, err
	}
	for _, ls := range given {
		for _, l := range ls {
			return l, nil
		}
	}
	mode := os.FileMode(0o666) // authorised by who connects
	if cfg.User {
		mode = 0o600
	}
	return ipc.Listen(cfg.Socket, mode)
}
