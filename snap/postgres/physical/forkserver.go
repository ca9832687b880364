package physical

import (
	"context"
	"fmt"
	"path/filepath"

	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/replay"
)

// hbaFile is the pg_hba.conf of a fork that is being made. It lets everybody connect who can enter the socket's folder.
const hbaFile = "mulligan_hba.conf"

// launch starts the server of a fork, and waits until the server has replayed the log and left recovery. With hot_standby = on
// in more, it waits only until the server takes connections.
func (fks *forks) launch(ctx context.Context, m marker, f facts, dir string, more ...string) (*replay.Server, error) {
	s := &replay.Server{Programs: fks.programs, Dir: dir, Role: f.Bootstrap, Log: fks.store.path("fork.log"), Socket: replay.SocketFolder(fks.store.Store), Port: replay.AnyPort()}
	hba := filepath.Join(dir, hbaFile)
	if s.Passing = len(s.Socket) > replay.SocketLimit; s.Passing {
		s.Socket = filepath.Join("/tmp", "mulligan-"+randomHex(8))
	}
	if _, err := asowner.Mkdir.Call(ctx, fks.store.owner, asowner.NewFolder{Path: s.Socket, Old: !s.Passing}); err != nil {
		return nil, err
	}
	if err := fks.store.arrange(ctx, asowner.Arrangement{Dir: dir, Files: map[string][]byte{hbaFile: []byte("local all all trust\n")}}); err != nil {
		return nil, err
	}
	args := []string{"-D", dir}
	for _, setting := range append(fks.settings(m, f, dir, hba, s), more...) {
		args = append(args, "-c", setting)
	}
	if err := s.Start(ctx, args); err != nil {
		return nil, err
	}
	return s, nil
}

// settings returns the settings of a fork's server, which only replays the log and answers a few queries. It does not archive,
// run background jobs or replicate, and takes little memory. Its writes are made durable after it has stopped.
func (fks *forks) settings(m marker, f facts, dir, hba string, s *replay.Server) []string {
	restore := fks.archive.restoreCommand()
	if m.Point == "" { // all of its log is in the folder
		restore = fks.archive.historyCommand()
	}
	list := []string{
		// recovery_target_name comes last, because no other target may be set after it, not even to an empty value.
		"recovery_target=", "recovery_target_lsn=", "recovery_target_time=", "recovery_target_xid=", "recovery_target_name=" + m.Point,
		fmt.Sprintf("recovery_target_timeline=%d", m.TLI), "recovery_target_action=promote",
		"restore_command=" + restore, "recovery_end_command=", "archive_cleanup_command=",
		"hot_standby=off", "archive_mode=off", "primary_conninfo=", "primary_slot_name=", "listen_addresses=", fmt.Sprintf("port=%d", s.Port),
		"unix_socket_directories=" + s.Socket, "unix_socket_permissions=0700", "unix_socket_group=", "external_pid_file=", "hba_file=" + hba, "data_directory=" + dir,
		"shared_preload_libraries=", "session_preload_libraries=", "local_preload_libraries=", "max_logical_replication_workers=0", "autovacuum=off",
		"shared_buffers=128MB", "huge_pages=off", "ssl=off", "logging_collector=off", "log_destination=stderr", "log_min_messages=warning",
		"fsync=off", "checkpoint_timeout=1d", "max_wal_size=1TB", "wal_keep_size=1TB", "synchronous_standby_names=", "cluster_name=mulligan", "default_transaction_read_only=off",
	}
	if !f.Inside { // as on Debian
		list = append(list, "config_file="+f.ConfigFile)
	}
	return list
}
