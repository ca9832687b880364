package physical

import (
	"context"
	"strings"

	"mulligan/errs"
	"mulligan/snap/postgres/physical/asowner"
	known "mulligan/snap/postgres/physical/facts"
	"mulligan/snap/postgres/physical/jsonrows"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/session"
)

type facts = known.Facts

// clusters returns what tells whether a cluster is one whose states are kept here.
func (r *records) clusters() known.Clusters {
	return known.Clusters{Name: r.cluster, Records: jsonrows.Folder(r.dir)}
}

// inspect queries the facts from the live server.
func (s *server) inspect(ctx context.Context, c session.Conn) (facts, error) {
	return known.Read(ctx, c, slot, s.isData)
}

// refuse returns an error if physical mode cannot handle the cluster.
func (s *server) refuse(ctx context.Context, f facts) error {
	if !s.isData(f.DataDir) {
		return errs.New(errs.Invalid, "", "the server of the DSN keeps its data in %s, not in %s", f.DataDir, s.DataDir).
			WithHint("correct the DSN or the data folder")
	}
	if err := f.Refuse(); err != nil {
		return err
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
