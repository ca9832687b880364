package physical

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/session"
	"mulligan/snap/postgres/physical/wal"
)

// facts are the properties of a cluster and its server that the driver needs.
type facts struct {
	Version        int
	System         string // the cluster's system identifier
	DataDir        string
	ConfigFile     string
	Inside         bool // ConfigFile is in the data folder
	Superuser      bool
	Bootstrap      string // the cluster's first role, which exists in every state of the cluster
	Standby        bool
	ArchiveMode    string
	ArchiveCommand string // the present value in the server
	FileCommand    string // the value after a restart
	ArchiveLibrary string
	WALLevel       string
	Segments       wal.Segments
	Fsync          bool
	TLI            wal.Timeline `json:",omitzero"`
	Spaces         []string     // names of additional tablespaces
	Databases      []string
	Size           int64 // of all databases, in bytes
	Slot           bool  // whether the driver's replication slot exists
	// Given are the names of settings from the server's command line or environment.
	Given []string
}

const factsSQL = `SELECT current_setting('server_version_num')::int, (SELECT system_identifier::text FROM pg_control_system()),
	current_setting('data_directory'), current_setting('config_file'), (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
	(SELECT rolname FROM pg_roles WHERE oid = 10), pg_is_in_recovery(), current_setting('archive_mode'), current_setting('archive_command'),
	coalesce((SELECT setting FROM pg_file_settings WHERE name = 'archive_command' AND error IS NULL ORDER BY seqno DESC LIMIT 1), ''),
	coalesce(current_setting('archive_library', true), ''), current_setting('wal_level'),
	(SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'), current_setting('fsync')::bool,
	ARRAY(SELECT spcname::text FROM pg_tablespace WHERE spcname NOT IN ('pg_default', 'pg_global') ORDER BY 1),
	ARRAY(SELECT datname::text FROM pg_database WHERE datallowconn AND NOT datistemplate ORDER BY 1),
	(SELECT sum(pg_database_size(oid)) FROM pg_database)::bigint,
	EXISTS(SELECT FROM pg_replication_slots WHERE slot_name = '` + slot + `'),
	ARRAY(SELECT name::text FROM pg_settings WHERE source IN ('command line', 'environment variable') AND name NOT IN ('config_file', 'data_directory', 'client_encoding') ORDER BY 1)`

// inspect queries the facts from the live server. It returns an error of kind errs.Denied if the role is not a superuser.
func (s *server) inspect(ctx context.Context, c session.Conn) (f facts, err error) {
	var superuser bool
	if err := c.Row(ctx, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user", &superuser); err != nil {
		return f, err
	}
	if !superuser {
		return f, errs.New(errs.Denied, "", "%s is not a superuser, and only a superuser can restore a whole cluster", c.Config().User).
			WithHint("give a DSN of a superuser, or use mode = logical")
	}
	err = c.Row(ctx, factsSQL, &f.Version, &f.System, &f.DataDir, &f.ConfigFile, &f.Superuser, &f.Bootstrap,
		&f.Standby, &f.ArchiveMode, &f.ArchiveCommand, &f.FileCommand, &f.ArchiveLibrary, &f.WALLevel, &f.Segments, &f.Fsync,
		&f.Spaces, &f.Databases, &f.Size, &f.Slot, &f.Given)
	if err != nil {
		return f, err
	}
	f.Inside = s.isData(filepath.Dir(f.ConfigFile))
	if f.Standby {
		return f, nil
	}
	f.TLI, err = c.Timeline(ctx)
	return f, err
}

// refuse returns an error if physical mode cannot handle the cluster.
func (s *server) refuse(ctx context.Context, f facts) error {
	no := func(format string, args ...any) *errs.Error {
		return errs.New(errs.Unsupported, "", format, args...).WithHint("use mode = logical")
	}
	switch {
	case !s.isData(f.DataDir):
		return errs.New(errs.Invalid, "", "the server of the DSN keeps its data in %s, not in %s", f.DataDir, s.DataDir).
			WithHint("correct the DSN or the data folder")
	case f.Version < 150000:
		return no("PostgreSQL %d is too old: at least 15 is needed", f.Version/10000)
	case f.Standby:
		return no("the server is a standby of another")
	case len(f.Spaces) > 0:
		return no("the cluster has tablespaces outside its data folder (%s), which would be shared by all copies", strings.Join(f.Spaces, ", "))
	case f.WALLevel == "minimal":
		return errs.New(errs.Unsupported, "", "wal_level is minimal, with which the log cannot be replayed").
			WithHint("set wal_level = replica and restart the server")
	}
	if err := s.store.layout(ctx); err != nil {
		return err
	}
	return s.refuseStarting(f)
}

// isData reports whether a path is that of the data folder, as the server names it.
func (s *server) isData(path string) bool {
	if s.inside != nil {
		return path == s.inside.DataDir
	}
	same, err := asowner.SameFile(path, s.DataDir)
	return err == nil && same || path == s.DataDir
}

// refuseStarting returns an error if the daemon cannot start the server with its present settings, because somebody else
// started it with other ones.
func (s *server) refuseStarting(f facts) error {
	p, ours := s.Server.(pgserver.PgCtl)
	switch {
	case !ours:
		return nil
	case p.Config == "" && !f.Inside:
		return errs.New(errs.Unsupported, "", "the configuration of the server is in %s, outside of its data folder, and no unit starts it", f.ConfigFile).
			WithHint("have root name the unit that serves the cluster, or use mode = logical")
	case len(f.Given) > 0:
		return errs.New(errs.Unsupported, "", "the server was started with settings of its own (%s), which it would not have after a restore", strings.Join(f.Given, ", ")).
			WithHint("write them into postgresql.conf and start the server without them, or use mode = logical")
	}
	return nil
}

// others returns the databases except own and postgres.
func (f facts) others(own string) []string {
	return slices.DeleteFunc(slices.Clone(f.Databases), func(s string) bool { return s == own || s == "postgres" })
}

// lasting returns the facts without those that change often.
func (f facts) lasting() facts {
	f.TLI, f.Spaces, f.Databases, f.Size, f.Slot, f.Given = 0, nil, nil, 0, false, nil
	return f
}
