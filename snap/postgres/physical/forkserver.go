package physical

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"mulligan/errs"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/session"
	"mulligan/snap/postgres/physical/wal"
)

// forkServer is the server of a fork that is being made. It takes connections on
// a socket in a folder that nobody but the owner and the daemon can enter.
type forkServer struct {
	store    *store
	programs pgserver.Programs
	dir      string
	socket   string
	role     string
	cmd      *exec.Cmd
	done     chan struct{} // closed when it has ended
}

// socketLimit is the longest folder for a socket: its path has 107 bytes at most.
const socketLimit = 85

// hbaFile is who may connect to a fork that is being made: whoever can enter the socket's folder.
const hbaFile = "mulligan_hba.conf"

// launch starts the server of a fork, and waits until it has replayed the log
// and left recovery, or until it answers, where the settings in more have it so.
func (fks *forks) launch(ctx context.Context, m marker, f facts, dir string, more ...string) (*forkServer, error) {
	s := &forkServer{store: fks.store, programs: fks.programs, dir: dir, role: f.Bootstrap, socket: fks.store.path("sock"), done: make(chan struct{})}
	hba := filepath.Join(dir, hbaFile)
	if len(s.socket) > socketLimit {
		s.socket = filepath.Join("/tmp", "mulligan-"+randomHex(8))
	}
	if _, err := asowner.Mkdir.Call(ctx, fks.store.owner, asowner.NewFolder{Path: s.socket, Old: !s.elsewhere()}); err != nil {
		return nil, err
	}
	if err := fks.store.arrange(ctx, asowner.Arrangement{Dir: dir, Files: map[string][]byte{hbaFile: []byte("local all all trust\n")}}); err != nil {
		return nil, err
	}
	args := []string{"-D", dir}
	for _, setting := range append(fks.settings(m, f, dir, hba, s.socket), more...) {
		args = append(args, "-c", setting)
	}
	s.cmd = fks.programs.Command(context.Background(), "postgres", args...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		return nil, errs.Also(err, s.end(context.WithoutCancel(ctx), false))
	}
	return s, nil
}

// settings returns the settings of a fork's server. They are for a server that replays and is asked a few things: it may
// not archive, run jobs, speak to others, or take much memory. What it writes is
// made durable when it has stopped.
func (fks *forks) settings(m marker, f facts, dir, hba, socket string) []string {
	list := []string{
		// The name comes last: no other target may be set after it, not even to nothing.
		"recovery_target=", "recovery_target_lsn=", "recovery_target_time=", "recovery_target_xid=", "recovery_target_name=" + m.Point,
		fmt.Sprintf("recovery_target_timeline=%d", m.TLI), "recovery_target_action=promote",
		"restore_command=" + fks.archive.restoreCommand(), "recovery_end_command=", "archive_cleanup_command=",
		"hot_standby=off", "archive_mode=off", "primary_conninfo=", "primary_slot_name=", "listen_addresses=", "port=5432",
		"unix_socket_directories=" + socket, "unix_socket_permissions=0700", "unix_socket_group=", "external_pid_file=", "hba_file=" + hba, "data_directory=" + dir,
		"shared_preload_libraries=", "session_preload_libraries=", "local_preload_libraries=", "max_logical_replication_workers=0", "autovacuum=off",
		"shared_buffers=128MB", "huge_pages=off", "ssl=off", "logging_collector=off", "log_destination=stderr", "log_min_messages=warning",
		"fsync=off", "checkpoint_timeout=1d", "max_wal_size=1TB", "wal_keep_size=1TB", "synchronous_standby_names=", "cluster_name=mulligan", "default_transaction_read_only=off",
	}
	if !f.Inside { // as on Debian
		list = append(list, "config_file="+f.ConfigFile)
	}
	return list
}

// run starts the process so that the kernel ends it when the daemon ends. The
// kernel goes by the thread that started it, so that one is kept.
func (s *forkServer) run(ctx context.Context) error {
	log, err := s.store.owner.Create(ctx, s.logFile(), 0o600)
	if err != nil {
		return err
	}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.store.owner.Start(s.cmd, pgserver.Confined)
		started <- err
		if err == nil {
			_ = s.cmd.Wait() // how it ended is in its log and in the control file
		}
		close(s.done)
	}()
	return errs.Also(<-started, log.Close())
}

// logFile returns the file with what the server of the last fork said.
func (s *forkServer) logFile() string { return s.store.path("fork.log") }

// elsewhere reports whether the socket is in a folder outside of the store.
func (s *forkServer) elsewhere() bool { return s.socket != s.store.path("sock") }

// ready waits until the server takes connections. With hot_standby = off that is
// when it has left recovery; pg_ctl would return before.
func (s *forkServer) ready(ctx context.Context) error {
	return pgserver.Await(ctx, func() (bool, error) {
		select {
		case <-s.done:
			return false, s.died(ctx)
		default:
			return s.programs.Status(ctx, s.dir) == "ready", nil
		}
	})
}

// died says why the server ended.
func (s *forkServer) died(ctx context.Context) error {
	data, err := asowner.Tail.Call(ctx, s.store.owner, s.logFile())
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
	// Whatever it stumbled on is in the base or the log: both are ours, and should have been good.
	return errs.New(errs.Corrupt, "", "the log could not be replayed up to the marker: %s", why).WithHint("use another checkpoint; %s says more", s.logFile())
}

// connect connects to one of the fork's databases.
func (s *forkServer) connect(ctx context.Context, database string) (session.Conn, error) {
	cfg, err := session.Config(map[string]string{"host": s.socket, "port": "5432", "user": s.role, "password": "", "dbname": database, "sslmode": "disable"})
	if err != nil {
		return session.Conn{}, err
	}
	cfg.DialFunc = s.store.owner.Dial
	return session.Open(ctx, cfg)
}

// timeline returns the timeline that the fork writes log of.
func (s *forkServer) timeline(ctx context.Context) (wal.Timeline, error) {
	c, err := s.connect(ctx, "postgres")
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.Timeline(ctx)
}

// makeSlot makes the replication slot in the fork, which keeps its log once it is live.
func (s *forkServer) makeSlot(ctx context.Context) error {
	c, err := s.connect(ctx, "postgres")
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Run(ctx, makeSlot)
}

// end stops the server: in order, or at once when the fork is of no use.
func (s *forkServer) end(ctx context.Context, inOrder bool) error {
	sig := syscall.SIGQUIT
	if inOrder {
		sig = syscall.SIGINT
	}
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		<-s.done
	}
	if s.elsewhere() {
		return s.store.remove(ctx, s.socket)
	}
	return nil
}
