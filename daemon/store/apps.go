package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"mulligan/ipc"
	"mulligan/ipc/errs"
)

// App is a registered app with what only the daemon needs to know.
type App struct {
	ipc.App
	OwnerUID  int
	FolderUID int  // whom the workspace belonged to when it was registered; -1: not noted
	ByRoot    bool // root said what the app consists of
}

// PutApp inserts an app, or replaces its spec; a removed one is registered again.
func (s *Store) PutApp(ctx context.Context, a App) error {
	spec, err := json.Marshal(a.App)
	if err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO apps (id, slug, owner_uid, workspace, spec, created_at, folder_uid, by_root) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET slug = excluded.slug, workspace = excluded.workspace,
				spec = excluded.spec, removed_at = NULL, folder_uid = excluded.folder_uid, by_root = excluded.by_root`,
			a.ID, a.Slug, a.OwnerUID, a.Workspace, string(spec), a.CreatedAt.UnixNano(), a.FolderUID, a.ByRoot)
		return err
	})
}

// Apps lists the registered apps by slug.
func (s *Store) Apps(ctx context.Context) ([]App, error) {
	return s.apps(ctx, `WHERE removed_at IS NULL ORDER BY slug`)
}

// AllApps lists the removed ones too.
func (s *Store) AllApps(ctx context.Context) ([]App, error) {
	return s.apps(ctx, `ORDER BY slug`)
}

// RemovedApp finds the app that was last registered for a workspace and owner
// and then removed: its checkpoints are still there. errs.NotFound without one.
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
	rows, err := s.r.QueryContext(ctx, `SELECT owner_uid, spec, folder_uid, by_root FROM apps `+where, args...)
	if err != nil {
		return nil, errs.Wrap(errs.Failed, "read records", err)
	}
	defer rows.Close()
	var apps []App
	for rows.Next() {
		var a App
		var spec string
		if err := rows.Scan(&a.OwnerUID, &spec, &a.FolderUID, &a.ByRoot); err != nil {
			return nil, errs.Wrap(errs.Failed, "read records", err)
		}
		if err := json.Unmarshal([]byte(spec), &a.App); err != nil {
			return nil, errs.Wrap(errs.Corrupt, "read records", err)
		}
		apps = append(apps, a)
	}
	return apps, errs.Wrap(errs.Failed, "read records", rows.Err())
}

// RemoveApp unregisters an app and keeps its checkpoints.
func (s *Store) RemoveApp(ctx context.Context, id ipc.AppID, at time.Time) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE apps SET removed_at = ? WHERE id = ?`, at.UnixNano(), id)
		return err
	})
}

// PurgeApp forgets an app and its checkpoints. The audit trail stays.
func (s *Store) PurgeApp(ctx context.Context, id ipc.AppID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, q := range []string{
			`DELETE FROM operations WHERE app_id = ?`,
			`DELETE FROM checkpoints WHERE app_id = ?`,
			`DELETE FROM apps WHERE id = ?`,
		} {
			if _, err := tx.ExecContext(ctx, q, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// CountApps counts an owner's apps, removed ones too.
func (s *Store) CountApps(ctx context.Context, owner string, uid int) (n int, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT count(*) FROM apps WHERE json_extract(spec, '$.owner') = ? AND owner_uid = ?`, owner, uid).Scan(&n)
	return n, errs.Wrap(errs.Failed, "read records", err)
}

// CountCheckpoints counts the checkpoints of all of an owner's apps, removed ones too.
func (s *Store) CountCheckpoints(ctx context.Context, owner string, uid int) (n int, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT count(*) FROM checkpoints WHERE app_id IN
		(SELECT id FROM apps WHERE json_extract(spec, '$.owner') = ? AND owner_uid = ?)`, owner, uid).Scan(&n)
	return n, errs.Wrap(errs.Failed, "read records", err)
}

// CountAll counts the checkpoints of registered apps.
func (s *Store) CountAll(ctx context.Context) (n int, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT count(*) FROM checkpoints WHERE app_id IN
		(SELECT id FROM apps WHERE removed_at IS NULL)`).Scan(&n)
	return n, errs.Wrap(errs.Failed, "read records", err)
}
