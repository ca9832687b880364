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

// forkServer is the server of a fork that is being made. Its socket is in a folder that only the owner and the daemon can
// enter.
type forkServer struct {
	store    *store
	programs pgserver.Programs
	dir      string
	socket   string
	role     string
	cmd      *exec.Cmd
	done     chan struct{} // closed when the server has ended
}

// socketLimit is the longest path in bytes of a folder for a socket: the path of a socket has at most 107 bytes.
const socketLimit = 85

// hbaFile is the pg_hba.conf of a fork that is being made. It lets everybody connect who can enter the socket's folder.
const hbaFile = "mulligan_hba.conf"

// launch starts the server of a fork, and waits until the server has replayed the log and left recovery. With hot_standby = on
// in more, it waits only until the server takes connections.
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

// settings returns the settings of a fork's server, which only replays the log and answers a few queries. It does not archive,
// run background jobs or replicate, and takes little memory. Its writes are made durable after it has stopped.
func (fks *forks) settings(m marker, f facts, dir, hba, socket string) []string {
	restore := fks.archive.restoreCommand()
	if m.Point == "" { // all of its log is in the folder
		restore = fks.archive.historyCommand()
	}
	list := []string{
		// recovery_target_name comes last, because no other target may be set after it, not even to an empty value.
		"recovery_target=", "recovery_target_lsn=", "recovery_target_time=", "recovery_target_xid=", "recovery_target_name=" + m.Point,
		fmt.Sprintf("recovery_target_timeline=%d", m.TLI), "recovery_target_action=promote",
		"restore_command=" + restore, "recovery_end_command=", "archive_cleanup_command=",
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

// run starts the process so that the kernel ends it when the daemon ends. The kernel does this when the thread that started the
// process ends, so the thread is kept.
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
			_ = s.cmd.Wait() // its log and the control file say how it ended
		}
		close(s.done)
	}()
	return errs.Also(<-started, log.Close())
}

// logFile returns the log of the last fork's server.
func (s *forkServer) logFile() string { return s.store.path("fork.log") }

// elsewhere reports whether the socket is in a folder outside of the store.
func (s *forkServer) elsewhere() bool { return s.socket != s.store.path("sock") }

// ready waits until the server takes connections. With hot_standby = off, that is after the end of recovery; pg_ctl would
// return earlier.
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

// died returns an error with the reason for the server's end.
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
	// The cause lies in the base backup or in the log, both of which mulligan stored, so the error is of kind errs.Corrupt.
	return errs.New(errs.Corrupt, "", "the log could not be replayed up to the marker: %s", why).WithHint("use another checkpoint; %s says more", s.logFile())
}

// connect connects to a database of the fork.
func (s *forkServer) connect(ctx context.Context, database string) (session.Conn, error) {
	cfg, err := session.Config(map[string]string{"host": s.socket, "port": "5432", "user": s.role, "password": "", "dbname": database, "sslmode": "disable"})
	if err != nil {
		return session.Conn{}, err
	}
	cfg.DialFunc = s.store.owner.Dial
	return session.Open(ctx, cfg)
}

// timeline returns the timeline on which the fork's server writes.
func (s *forkServer) timeline(ctx context.Context) (wal.Timeline, error) {
	c, err := s.connect(ctx, "postgres")
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.Timeline(ctx)
}

// makeSlot makes the replication slot in the fork. It keeps the log of the fork once the fork is live.
func (s *forkServer) makeSlot(ctx context.Context) error {
	c, err := s.connect(ctx, "postgres")
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Run(ctx, makeSlot)
}

// end stops the server: cleanly, or at once if the fork is not used.
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
