package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

// Remote is a place in an object store to which an app's checkpoints are sent.
type Remote struct {
	AppID ipc.AppID `json:"app_id"`
	ipc.RemotePlace
	Place     string             `json:"place"`          // the folder of the app, below the URL
	Writer    string             `json:"writer"`         // by which the log knows this host
	LogKey    []byte             `json:"log_key"`        // of the place's log
	ByRoot    bool               `json:"by_root"`        // root added it
	Keys      *Keys              `json:"keys,omitempty"` // nil: those of the daemon's configuration
	Abilities ipc.Abilities      `json:"abilities"`
	Added     time.Time          `json:"added"`
	Wanted    []ipc.CheckpointID `json:"wanted,omitempty"`    // that somebody asked to send
	ReadOnly  bool               `json:"read_only,omitempty"` // nothing is sent: a clone that did not take the place over
	Clone     *Clone             `json:"clone,omitempty"`     // the app is being made from the place; nil: it is not
}

// Clone is an app that is being made from a remote. After a crash it is finished or dropped.
type Clone struct {
	Dir        string           `json:"dir"`
	MadeDir    bool             `json:"made_dir"` // the folder was made for the clone
	OwnerUID   int              `json:"owner_uid"`
	Checkpoint ipc.CheckpointID `json:"checkpoint"` // as it is called here
}

// Keys are what a bucket's server knows the daemon by.
type Keys struct {
	Access  string `json:"access"`
	Secret  string `json:"secret"`
	Session string `json:"session,omitempty"`
}

// PutRemote inserts a remote, or replaces its record. If there is no record of its app, which then was purged, the error is of kind errs.NotFound,
// unless the app is still being made from the remote.
func PutRemote(ctx context.Context, s *Store, r Remote) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `INSERT INTO remotes (app_id, name, body) SELECT ?1, ?2, ?3 WHERE ?4 OR EXISTS (SELECT 1 FROM apps WHERE id = ?1)
			ON CONFLICT (app_id, name) DO UPDATE SET body = excluded.body`, r.AppID, r.Name, string(body), r.Clone != nil)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			return err
		}
		return errs.New(errs.NotFound, "", "no app %s", r.AppID)
	})
}

// Remotes returns all remotes, by app and name.
func Remotes(ctx context.Context, s *Store) ([]Remote, error) {
	return query(ctx, s.r, `SELECT body, `+intact("remotes")+` FROM remotes ORDER BY app_id, name`, func(rows *sql.Rows) (r Remote, err error) {
		var body string
		var whole bool
		if err := rows.Scan(&body, &whole); err != nil {
			return r, err
		}
		if !whole {
			return r, damaged("a remote")
		}
		err = errs.Wrap(errs.Corrupt, "", json.Unmarshal([]byte(body), &r))
		return r, err
	})
}

// DeleteRemote deletes the record of a remote.
func DeleteRemote(ctx context.Context, s *Store, app ipc.AppID, name string) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM remotes WHERE app_id = ? AND name = ?`, app, name)
		return err
	})
}
