// Package facts reads what a driver must know of a PostgreSQL cluster and its server.
package facts

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/snap/postgres/physical/session"
	"mulligan/snap/postgres/physical/wal"
)

// Facts are the properties of a cluster and its server that the driver needs.
type Facts struct {
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

const query = `SELECT current_setting('server_version_num')::int, (SELECT system_identifier::text FROM pg_control_system()),
	current_setting('data_directory'), current_setting('config_file'), (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
	(SELECT rolname FROM pg_roles WHERE oid = 10), pg_is_in_recovery(), current_setting('archive_mode'), current_setting('archive_command'),
	coalesce((SELECT setting FROM pg_file_settings WHERE name = 'archive_command' AND error IS NULL ORDER BY seqno DESC LIMIT 1), ''),
	coalesce(current_setting('archive_library', true), ''), current_setting('wal_level'),
	(SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'), current_setting('fsync')::bool,
	ARRAY(SELECT spcname::text FROM pg_tablespace WHERE spcname NOT IN ('pg_default', 'pg_global') ORDER BY 1),
	ARRAY(SELECT datname::text FROM pg_database WHERE datallowconn AND NOT datistemplate ORDER BY 1),
	(SELECT sum(pg_database_size(oid)) FROM pg_database)::bigint,
	EXISTS(SELECT FROM pg_replication_slots WHERE slot_name = $1),
	ARRAY(SELECT name::text FROM pg_settings WHERE source IN ('command line', 'environment variable') AND name NOT IN ('config_file', 'data_directory', 'client_encoding') ORDER BY 1)`

// Read queries the facts from the live server. slot is the name of the driver's replication slot, and isData reports whether a path is that of the
// data folder. The error is of kind errs.Denied if the role is not a superuser.
func Read(ctx context.Context, c session.Conn, slot string, isData func(string) bool) (f Facts, err error) {
	var superuser bool
	if err := c.Row(ctx, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user", &superuser); err != nil {
		return f, err
	}
	if !superuser {
		return f, errs.New(errs.Denied, "", "%s is not a superuser, and only a superuser can restore a whole cluster", c.Config().User).
			WithHint("give a DSN of a superuser, or use mode = logical")
	}
	err = c.Row(ctx, strings.ReplaceAll(query, "$1", "'"+slot+"'"), &f.Version, &f.System, &f.DataDir, &f.ConfigFile, &f.Superuser, &f.Bootstrap,
		&f.Standby, &f.ArchiveMode, &f.ArchiveCommand, &f.FileCommand, &f.ArchiveLibrary, &f.WALLevel, &f.Segments, &f.Fsync,
		&f.Spaces, &f.Databases, &f.Size, &f.Slot, &f.Given)
	if err != nil {
		return f, err
	}
	f.Inside = isData(filepath.Dir(f.ConfigFile))
	if f.Standby {
		return f, nil
	}
	f.TLI, err = c.Timeline(ctx)
	return f, err
}

// Refuse returns an error if physical mode cannot handle such a cluster.
func (f Facts) Refuse() error {
	no := func(format string, args ...any) *errs.Error {
		return errs.New(errs.Unsupported, "", format, args...).WithHint("use mode = logical")
	}
	switch {
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
	return nil
}

// Others returns the databases except own and postgres.
func (f Facts) Others(own string) []string {
	return slices.DeleteFunc(slices.Clone(f.Databases), func(s string) bool { return s == own || s == "postgres" })
}

// Lasting returns the facts without those that change often.
func (f Facts) Lasting() Facts {
	f.TLI, f.Spaces, f.Databases, f.Size, f.Slot, f.Given = 0, nil, nil, 0, false, nil
	return f
}
