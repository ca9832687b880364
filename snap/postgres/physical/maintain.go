package physical

import (
	"context"
	"fmt"
	"strings"

	"mulligan/errs"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/wal"
)

// Maintain does the work that can be done in the background: it copies log that the server does not archive by itself, removes
// what no snapshot needs, and takes a new base backup when the replay from the last one would become too long. Captures
// continue meanwhile. The caller should call it every few seconds.
func (d *Driver) Maintain(ctx context.Context) error {
	const op = "maintain cluster"
	due := false
	err := d.Do(ctx, op, func() (err error) {
		due, err = d.tidy(ctx)
		return err
	})
	if due {
		err = errs.Also(err, d.bases.take(ctx))
	}
	return database.Classify(op, err, d.cfg.DataDir)
}

// tidy does the short part of Maintain, and reports whether a base backup is due. One may be due although the record of a snapshot
// is damaged, which is an error.
func (d *Driver) tidy(ctx context.Context) (due bool, err error) {
	if d.left {
		return false, nil
	}
	c, err := d.server.connect(ctx)
	if err != nil {
		return false, err
	}
	defer c.Close()
	f, err := d.server.inspect(ctx, c)
	if err != nil {
		return false, err
	}
	if err := d.records.clusters().Check(f.System); err != nil {
		return false, err
	}
	if err := d.records.rememberAgain(f); err != nil {
		return false, err
	}
	if err := d.archive.collect(ctx, c, f); err != nil {
		return false, err
	}
	if err := d.note(ctx, f); err != nil {
		return false, err
	}
	if err := d.retention.prune(ctx); err != nil {
		return false, err
	}
	var end wal.LSN
	if err := c.Row(ctx, "SELECT pg_current_wal_flush_lsn()::text", &end); err != nil {
		return false, err
	}
	b, err := d.bases.nearest(ctx, marker{place: place{TLI: f.TLI}, LSN: end}, f.Segments)
	due = errs.KindOf(err) == errs.Corrupt || err == nil && int64(end-b.Start) > d.maxReplay(ctx) // or there is no base backup
	return due, errs.Also(undamaged(err), d.records.damaged())
}

func (d *Driver) maxReplay(ctx context.Context) int64 {
	switch {
	case d.cfg.MaxReplay > 0:
		return d.cfg.MaxReplay
	case d.store.cloning(ctx):
		return 128 << 20
	}
	return 1 << 30
}

const unloggedSQL = "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relpersistence = 'u' AND c.relkind IN ('r', 'p') ORDER BY 1 LIMIT 5"

// note records warnings about unlogged tables for later captures. A capture does not query each database itself, because that
// takes too long.
func (d *Driver) note(ctx context.Context, f facts) error {
	notes := []string{}
	for _, db := range f.Databases {
		c, err := d.server.connectTo(ctx, db)
		if err != nil {
			continue // it was dropped, or takes no connections
		}
		unlogged, err := c.Column(ctx, unloggedSQL)
		c.Close()
		if err != nil {
			return err
		}
		if len(unlogged) > 0 {
			notes = append(notes, fmt.Sprintf("Unlogged tables are empty after a restore: %s in database %s.", strings.Join(unlogged, ", "), db))
		}
	}
	var old []string
	if err := d.records.get(".", "notes", &old); err == nil && strings.Join(old, "\n") == strings.Join(notes, "\n") {
		return nil
	}
	return d.records.put(".", "notes", notes)
}
