package physical

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/wal"
)

// fork is a data folder that holds a marker's state and was shut down in order.
type fork struct {
	Dir      string           `json:"dir"` // its name in forks/
	Inode    uint64           `json:"inode"`
	End      pgserver.Control `json:"end,omitzero"`
	Contents *contents        `json:"-"` // nil when its server was not asked
}

// start of reading the log for what was changed since the fork was shut down.
func (f fork) place() place { return place{f.End.TLI, f.End.Checkpoint, f.End.NextXID} }

// build makes a fork of m beside the live server, of which f tells.
func (d *Driver) build(ctx context.Context, m marker, f facts, fk *fork) error {
	b, err := d.bases.nearest(ctx, m, f.Segments)
	if err != nil {
		return err
	}
	if err := d.store.room(ctx, d.store.path("bases", b.ID)); err != nil {
		return err
	}
	checked := make(chan error, 1)
	go func() { checked <- d.bases.check(ctx, b) }() // while the log is replayed
	err = d.grow(ctx, m, f, b, fk)
	if damage := <-checked; errs.KindOf(damage) == errs.Corrupt || err == nil {
		err = errs.Also(damage, err)
	}
	if err == nil {
		fk.Inode, err = asowner.Inode(d.store.path("forks", fk.Dir))
	}
	return err
}

// grow clones the base, replays the log up to m on a new timeline, looks at what
// came out, and shuts it down.
func (d *Driver) grow(ctx context.Context, m marker, f facts, b wal.Base, fk *fork) error {
	dir := d.store.path("forks", fk.Dir)
	if err := d.cfg.Failpoint.At("fork: clone"); err != nil {
		return err
	}
	err := d.clone(ctx, m, b, dir)
	if err == nil {
		err = d.cfg.Failpoint.At("fork: replay")
	}
	if err != nil {
		return err
	}
	s, err := d.launch(ctx, m, f, dir)
	if err != nil {
		return err
	}
	err = d.look(ctx, s, m, f, fk)
	if e := s.end(ctx, err == nil); err == nil {
		err = e
	}
	if err == nil {
		err = d.cfg.Failpoint.At("fork: settle")
	}
	if err != nil {
		return err
	}
	return d.settle(ctx, f, fk)
}

// look asks the fork's server what it holds.
func (d *Driver) look(ctx context.Context, s *forkServer, m marker, f facts, fk *fork) error {
	now, err := s.timeline(ctx)
	if err != nil {
		return err
	}
	if now <= m.TLI {
		return errs.New(errs.Internal, "", "the fork of timeline %d is on timeline %d", m.TLI, now)
	}
	if !d.archive.filledBy(f) {
		if err := s.makeSlot(ctx); err != nil {
			return err
		}
	}
	fk.Contents, err = readContents(ctx, s.connect, d.cfg.DigestLimit)
	return err
}

// settle makes the stopped fork durable, and its timeline known for ever.
func (d *Driver) settle(ctx context.Context, f facts, fk *fork) (err error) {
	dir := d.store.path("forks", fk.Dir)
	if fk.End, err = d.server.ReadControl(ctx, dir); err != nil {
		return err
	}
	if fk.End.State != pgserver.ShutDown || fk.End.System != f.System {
		return errs.New(errs.Internal, "", "the fork of cluster %s is %q, of cluster %s", f.System, fk.End.State, fk.End.System)
	}
	history := fk.End.TLI.HistoryFile()
	tidy := asowner.Arrangement{Dir: dir, Drop: []string{"postmaster.opts", "backup_label.old", "recovery.signal", hbaFile}, Sync: true}
	if f.ArchiveMode != "off" { // whoever archives gets the history too, when the fork is live
		tidy.Files = map[string][]byte{filepath.Join("pg_wal", "archive_status", history+".ready"): nil}
	}
	if err := d.store.arrange(ctx, tidy); err != nil {
		return err
	}
	// With the history the timeline is taken. What is finished of its log nobody will archive later.
	end := fk.End.Segments.Name(fk.End.TLI, fk.End.Segments.Number(fk.End.Checkpoint))
	return d.archive.save(ctx, asowner.LogToSave{Wal: filepath.Join(dir, "pg_wal"), History: history, End: end})
}

// forkServer is the server of a fork that is being made. It takes connections on
// a socket in a folder that nobody but the owner and the daemon can enter.
type forkServer struct {
	d      *Driver
	dir    string
	socket string
	role   string
	cmd    *exec.Cmd
	done   chan struct{} // closed when it has ended
}

// socketLimit is the longest folder for a socket: its path has 107 bytes at most.
const socketLimit = 85

// hbaFile is who may connect to a fork that is being made: whoever can enter the socket's folder.
const hbaFile = "mulligan_hba.conf"

// launch starts the server of a fork, and waits until it has replayed the log
// and left recovery, or until it answers, where the settings in more have it so.
func (d *Driver) launch(ctx context.Context, m marker, f facts, dir string, more ...string) (*forkServer, error) {
	s := &forkServer{d: d, dir: dir, role: f.Bootstrap, socket: d.store.path("sock"), done: make(chan struct{})}
	hba := filepath.Join(dir, hbaFile)
	if len(s.socket) > socketLimit {
		s.socket = filepath.Join("/tmp", "mulligan-"+randomHex(8))
	}
	if _, err := asowner.Mkdir.Call(ctx, d.owner, asowner.NewFolder{Path: s.socket, Old: !s.elsewhere()}); err != nil {
		return nil, err
	}
	if err := d.store.arrange(ctx, asowner.Arrangement{Dir: dir, Files: map[string][]byte{hbaFile: []byte("local all all trust\n")}}); err != nil {
		return nil, err
	}
	args := []string{"-D", dir}
	for _, setting := range append(d.forkSettings(m, f, dir, hba, s.socket), more...) {
		args = append(args, "-c", setting)
	}
	s.cmd = d.server.Command(context.Background(), "postgres", args...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		return nil, errs.Also(err, s.end(context.WithoutCancel(ctx), false))
	}
	return s, nil
}

// forkSettings are for a server that replays and is asked a few things: it may
// not archive, run jobs, speak to others, or take much memory. What it writes is
// made durable when it has stopped.
func (d *Driver) forkSettings(m marker, f facts, dir, hba, socket string) []string {
	list := []string{
		// The name comes last: no other target may be set after it, not even to nothing.
		"recovery_target=", "recovery_target_lsn=", "recovery_target_time=", "recovery_target_xid=", "recovery_target_name=" + m.Point,
		fmt.Sprintf("recovery_target_timeline=%d", m.TLI), "recovery_target_action=promote",
		"restore_command=" + d.archive.restoreCommand(), "recovery_end_command=", "archive_cleanup_command=",
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
	log, err := s.d.owner.Create(ctx, s.logFile(), 0o600)
	if err != nil {
		return err
	}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.d.owner.Start(s.cmd, pgserver.Confined)
		started <- err
		if err == nil {
			_ = s.cmd.Wait() // how it ended is in its log and in the control file
		}
		close(s.done)
	}()
	return errs.Also(<-started, log.Close())
}

func (s *forkServer) logFile() string { return s.d.store.path("fork.log") }

// elsewhere reports whether the socket is in a folder outside of the store.
func (s *forkServer) elsewhere() bool { return s.socket != s.d.store.path("sock") }

// ready waits until the server takes connections. With hot_standby = off that is
// when it has left recovery; pg_ctl would return before.
func (s *forkServer) ready(ctx context.Context) error {
	return pgserver.Await(ctx, func() (bool, error) {
		select {
		case <-s.done:
			return false, s.died(ctx)
		default:
			return s.d.server.Status(ctx, s.dir) == "ready", nil
		}
	})
}

// died says why the server ended.
func (s *forkServer) died(ctx context.Context) error {
	data, err := asowner.Tail.Call(ctx, s.d.owner, s.logFile())
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
func (s *forkServer) connect(ctx context.Context, database string) (conn, error) {
	cfg, err := configOf(map[string]string{"host": s.socket, "port": "5432", "user": s.role, "password": "", "dbname": database, "sslmode": "disable"})
	if err != nil {
		return conn{}, err
	}
	cfg.DialFunc = s.d.owner.Dial
	return open(ctx, cfg)
}

func (s *forkServer) timeline(ctx context.Context) (wal.Timeline, error) {
	c, err := s.connect(ctx, "postgres")
	if err != nil {
		return 0, err
	}
	defer c.close()
	return c.timeline(ctx)
}

func (s *forkServer) makeSlot(ctx context.Context) error {
	c, err := s.connect(ctx, "postgres")
	if err != nil {
		return err
	}
	defer c.close()
	return c.exec(ctx, makeSlot)
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
		return s.d.store.remove(ctx, s.socket)
	}
	return nil
}

// keptFork gives the folder that was swapped out at m, if it is still as it was.
func (d *Driver) keptFork(ctx context.Context, id snap.SnapshotID) (fk fork, found bool, err error) {
	var k kept
	if err := d.records.get("kept", string(id), &k); errors.Is(err, fs.ErrNotExist) {
		return fk, false, nil
	} else if err != nil {
		return fk, false, err
	}
	dir := d.store.path("forks", k.Dir)
	if n, err := asowner.Inode(dir); err != nil || n != k.Inode {
		return fk, false, err
	}
	now, err := d.server.ReadControl(ctx, dir)
	if err != nil || !now.Same(k.End) || now.State != pgserver.ShutDown {
		return fk, false, nil // replay will do
	}
	return fork{Dir: k.Dir, Inode: k.Inode, End: k.End}, true, nil
}
