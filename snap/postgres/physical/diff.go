package physical

import (
	"context"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/physical/contents"
	"mulligan/snap/postgres/physical/session"
)

// Diff describes in SQL the differences between two snapshots, or between a snapshot and the live cluster, with the numbers of
// rows. A marker has no contents. To read its state, Diff clones the nearest base backup and replays the log up to the marker,
// without a new timeline. If files are copied and not cloned, the clone takes the size of the cluster until it is removed.
// paths are names of databases, or DATABASE/SCHEMA.TABLE; none means everything.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare cluster snapshots"
	if from == to {
		return nil, nil
	}
	var sides [2]map[string]contents.Relation
	err := d.Do(ctx, op, func() (err error) {
		if sides[0], err = d.describe(ctx, from); err == nil {
			sides[1], err = d.describe(ctx, to)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(contents.Compare(sides[0], sides[1]), func(c snap.Change) bool {
		return len(paths) > 0 && !slices.ContainsFunc(paths, func(p string) bool { return c.Path == p || strings.HasPrefix(c.Path, p+"/") })
	}), nil
}

// describe returns the relations of a snapshot, or of the live cluster if id is "".
func (d *Driver) describe(ctx context.Context, id snap.SnapshotID) (all map[string]contents.Relation, err error) {
	if id == "" {
		return contents.Relations(ctx, d.server.connectTo, d.cfg.DigestLimit)
	}
	s, err := d.records.state(id)
	if err != nil {
		return nil, err
	}
	if s.raw != nil {
		return nil, errs.New(errs.Unsupported, "", "snapshot %s holds files that could not be read, which cannot be compared", id).
			WithHint("roll back to it, or compare two other checkpoints")
	}
	m := s.marker
	c, err := d.server.connect(ctx)
	if err != nil {
		return nil, err
	}
	f, err := d.server.inspect(ctx, c)
	c.Close()
	if err != nil {
		return nil, err
	}
	err = d.forks.visit(ctx, m, f, func(to session.Connecter) error {
		all, err = contents.Relations(ctx, to, d.cfg.DigestLimit)
		return err
	})
	return all, err
}

var _ snap.Differ = (*Driver)(nil)
