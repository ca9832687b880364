package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

// App is a registered app with what only the daemon needs to know.
type App struct {
	ipc.App
	OwnerUID  int
	FolderUID int        // the owner of the workspace at its registration; -1: unknown
	ByRoot    bool       // root named the app's parts
	RemovedAt *time.Time // nil: it is registered
	Rev       int64      // revision: increases with each change of the record
}

// PutApp inserts an app, or replaces its record.
func (s *Store) PutApp(ctx context.Context, a App) error {
	spec, err := json.Marshal(a.App)
	if err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO apps (id, slug, owner_uid, workspace, spec, created_at, removed_at, folder_uid, by_root, rev)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET slug = excluded.slug, workspace = excluded.workspace, spec = excluded.spec,
				removed_at = excluded.removed_at, folder_uid = excluded.folder_uid, by_root = excluded.by_root, rev = excluded.rev`,
			a.ID, a.Slug, a.OwnerUID, a.Workspace, string(spec), a.CreatedAt.UnixNano(), nanos(a.RemovedAt), a.FolderUID, a.ByRoot, a.Rev)
		return err
	})
}

// nanos returns a time as the database stores it: NULL for none.
func nanos(at *time.Time) any {
	if at == nil {
		return nil
	}
	return at.UnixNano()
}

// Apps returns the registered apps, ordered by slug.
func (s *Store) Apps(ctx context.Context) ([]App, error) {
	return s.apps(ctx, `WHERE removed_at IS NULL ORDER BY slug`)
}

// AllApps returns all apps, removed ones included.
func (s *Store) AllApps(ctx context.Context) ([]App, error) {
	return s.apps(ctx, `ORDER BY slug`)
}

// RemovedApp returns the app that was last registered for a workspace and owner and then removed.
// Its checkpoints are still stored. It returns errs.NotFound if there is none.
func (s *Store) RemovedApp(ctx context.Context, workspace, owner string, uid int) (App, error) {
	apps, err := s.apps(ctx, `WHERE removed_at IS NOT NULL AND workspace = ? AND json_extract(spec, '$.owner') = ? AND owner_uid = ?
		ORDER BY removed_at DESC LIMIT 1`, workspace, owner, uid)
	if err != nil {
		return App{}, err
	}
	if len(apps) == 0 {
		return App{}, errs.New(errs.NotFound, "read records", "no removed app in %s", workspace)
	}
	return apps[0], nil
}

func (s *Store) apps(ctx context.Context, where string, args ...any) ([]App, error) {
	return query(ctx, s.r, `SELECT owner_uid, spec, removed_at, folder_uid, by_root, rev, `+intact("apps")+` FROM apps `+where,
		func(rows *sql.Rows) (a App, err error) {
			var spec string
			var removed sql.NullInt64
			var intact bool
			if err := rows.Scan(&a.OwnerUID, &spec, &removed, &a.FolderUID, &a.ByRoot, &a.Rev, &intact); err != nil {
				return a, err
			}
			if !intact {
				return a, damaged("an app")
			}
			if removed.Valid {
				at := time.Unix(0, removed.Int64).UTC()
				a.RemovedAt = &at
			}
			err = corrupt(json.Unmarshal([]byte(spec), &a.App))
			return a, err
		}, args...)
}

// App returns an app, registered or removed, or errs.NotFound.
func (s *Store) App(ctx context.Context, id ipc.AppID) (App, error) {
	apps, err := s.apps(ctx, `WHERE id = ?`, id)
	if err == nil && len(apps) == 0 {
		err = errs.New(errs.NotFound, "read records", "no app %s", id)
	}
	if err != nil {
		return App{}, err
	}
	return apps[0], nil
}

// corrupt returns an error of kind errs.Corrupt for stored text that cannot be parsed.
func corrupt(err error) error { return errs.Wrap(errs.Corrupt, "read records", err) }

// RemoveApp unregisters an app and keeps its checkpoints.
func (s *Store) RemoveApp(ctx context.Context, id ipc.AppID, at time.Time) error {
	a, err := s.App(ctx, id)
	if err != nil {
		return err
	}
	a.RemovedAt = &at
	a.Rev++
	return s.PutApp(ctx, a)
}

// PurgeApp deletes an app and its checkpoints, and stores disposals of their contents and the
// audit entry in the same transaction. The audit trail stays.
func (s *Store) PurgeApp(ctx context.Context, id ipc.AppID, entry *ipc.AuditEntry) error {
	cps, err := s.Checkpoints(ctx, id)
	if err != nil {
		return err
	}
	gone := []Disposal{{Kind: DisposeApp, ID: string(id), AppID: id, Cause: "purge"}}
	for _, cp := range cps {
		gone = append(gone, cp.disposals("purge")...)
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, q := range []string{
			`DELETE FROM operations WHERE app_id = ?`,
			`DELETE FROM checkpoints WHERE app_id = ?`,
			`DELETE FROM remotes WHERE app_id = ?`,
			`DELETE FROM apps WHERE id = ?`,
		} {
			if _, err := tx.ExecContext(ctx, q, id); err != nil {
				return err
			}
		}
		return errs.Also(putDisposals(ctx, tx, gone), appendAudit(ctx, tx, entry))
	})
}

// CountApps returns how many apps an owner has, removed ones included.
func (s *Store) CountApps(ctx context.Context, owner string, uid int) (n int, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT count(*) FROM apps WHERE json_extract(spec, '$.owner') = ? AND owner_uid = ?`, owner, uid).Scan(&n)
	return n, reading(err)
}

// CountCheckpoints returns how many checkpoints an owner's apps have, removed apps included.
func (s *Store) CountCheckpoints(ctx context.Context, owner string, uid int) (n int, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT count(*) FROM checkpoints WHERE app_id IN
		(SELECT id FROM apps WHERE json_extract(spec, '$.owner') = ? AND owner_uid = ?)`, owner, uid).Scan(&n)
	return n, reading(err)
}

// CountAll returns how many checkpoints all registered apps have.
func (s *Store) CountAll(ctx context.Context) (n int, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT count(*) FROM checkpoints WHERE app_id IN
		(SELECT id FROM apps WHERE removed_at IS NULL)`).Scan(&n)
	return n, reading(err)
}
