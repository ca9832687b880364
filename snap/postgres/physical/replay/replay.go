// Package replay runs the server of a folder that is a copy of a cluster: it replays the log, and answers a few queries. Nobody else can
// connect to it, and it ends with the daemon.
package replay

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mulligan/errs"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/session"
	"mulligan/snap/postgres/physical/wal"
)

// Server is the server of a copy that is being made. Its socket is in a folder that only the owner and the daemon can
// enter.
type Server struct {
	Programs pgserver.Programs
	Dir      string // its data folder
	Socket   string // the folder of its socket
	Port     int    // names the socket in the folder; see [AnyPort]
	Passing  bool   // the folder of the socket goes with the server
	Role     string // whom to connect as
	Log      string // the file of its log, which is replaced

	run  pgserver.Process
	done chan struct{} // closed when the server has ended
}

// SocketLimit is the longest path in bytes of a folder for a socket: the path of a socket has at most 107 bytes.
const SocketLimit = 85

// SocketFolder returns the folder in a cluster's store in which servers that replay the log have their socket, where its path is not too long.
func SocketFolder(store string) string { return filepath.Join(store, "sock") }

// AnyPort draws a port. A server has its own name in the folder of sockets, because another one may still be there: one of a daemon that was killed a
// moment ago, which takes its socket away by name when it ends, or what a power cut left of one.
func AnyPort() int { return 1024 + rand.IntN(1<<16-1024) }

// Start starts the server with these arguments, and waits until it takes connections. With hot_standby = off, that is after the end of
// recovery.
func (s *Server) Start(ctx context.Context, args []string) error {
	s.done = make(chan struct{})
	if err := s.start(ctx, args); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return errs.Also(err, s.End(context.WithoutCancel(ctx), false))
	}
	return nil
}

// Ended returns a channel that is closed when the server has ended.
func (s *Server) Ended() <-chan struct{} { return s.done }

// start starts the process, which ends when the daemon does.
func (s *Server) start(ctx context.Context, args []string) error {
	log, err := s.Programs.Owner.Create(ctx, s.Log, 0o600)
	if err != nil {
		return err
	}
	if s.run, err = s.Programs.Start(context.WithoutCancel(ctx), log, log, "postgres", args...); err != nil {
		return errs.Also(err, log.Close())
	}
	go func() {
		_ = s.run.Wait() // its log and the control file say how it ended
		_ = log.Close()  // what is missing in it would have been a hint
		close(s.done)
	}()
	return nil
}

// ready waits until the server takes connections. With hot_standby = off, that is after the end of recovery; pg_ctl would
// return earlier.
func (s *Server) ready(ctx context.Context) error {
	return pgserver.Await(ctx, func() (bool, error) {
		select {
		case <-s.done:
			return false, s.Died(ctx)
		default:
			return s.Programs.Status(ctx, s.Dir) == "ready", nil
		}
	})
}

// Died returns an error with the reason for the server's end.
func (s *Server) Died(ctx context.Context) error {
	data, err := asowner.Tail.Call(ctx, s.Programs.Owner, s.Log)
	if err != nil {
		return err
	}
	why := pgserver.LastLine(string(data))
	for line := range strings.Lines(string(data)) {
		if _, text, found := strings.Cut(line, "FATAL:"); found {
			why = strings.TrimSpace(text)
			break
		} else if _, text, found := strings.Cut(line, "PANIC:"); found {
			why = strings.TrimSpace(text)
		}
	}
	// The cause lies in the base backup or in the log, both of which mulligan stored, so the error is of kind errs.Corrupt.
	return errs.New(errs.Corrupt, "", "the log could not be replayed up to the marker: %s", why).WithHint("use another checkpoint; %s says more", s.Log)
}

// Connect connects to a database of the fork.
func (s *Server) Connect(ctx context.Context, database string) (session.Conn, error) {
	cfg, err := session.Config(map[string]string{"host": s.Socket, "port": strconv.Itoa(s.Port), "user": s.Role, "password": "", "dbname": database, "sslmode": "disable"})
	if err != nil {
		return session.Conn{}, err
	}
	cfg.DialFunc = s.Programs.Owner.Dial
	return session.Open(ctx, cfg)
}

// Timeline returns the timeline on which the fork's server writes.
func (s *Server) Timeline(ctx context.Context) (wal.Timeline, error) {
	c, err := s.Connect(ctx, "postgres")
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.Timeline(ctx)
}

// Run runs a statement.
func (s *Server) Run(ctx context.Context, sql string) error {
	c, err := s.Connect(ctx, "postgres")
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Run(ctx, sql)
}

// End stops the server: cleanly, or at once if the fork is not used.
func (s *Server) End(ctx context.Context, inOrder bool) error {
	sig := syscall.SIGQUIT
	if inOrder {
		sig = syscall.SIGINT
	}
	if err := s.run.Signal(sig); err != nil {
		return err
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		_ = s.run.Signal(syscall.SIGQUIT) // it may have ended
		<-s.done
	}
	err := s.Programs.Leave(context.WithoutCancel(ctx)) // the cluster's superusers decide what ran in the server
	if s.Passing {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, e := asowner.Remove.Call(ctx, s.Programs.Owner, []string{s.Socket})
		err = errs.Also(err, e)
	}
	return err
}
