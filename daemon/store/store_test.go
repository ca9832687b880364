package store

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func newStore(t *testing.T) (*Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mulligan.db")
	s := open(t, path)
	app := App{App: ipc.App{ID: "app-1", Slug: "shop", Owner: "alice", Workspace: "/srv/shop", CreatedAt: time.Unix(1, 0).UTC()}, OwnerUID: 7}
	if err := s.PutApp(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	return s, path
}

func TestApps(t *testing.T) {
	s, path := newStore(t)
	if err := s.RemoveApp(t.Context(), "app-1", time.Unix(2, 0)); err != nil {
		t.Fatal(err)
	}
	if apps, err := s.Apps(t.Context()); err != nil || len(apps) != 0 {
		t.Errorf("%v, %v", apps, err)
	}
	if _, err := s.RemovedApp(t.Context(), "/srv/shop", "bob", 7); errs.KindOf(err) != errs.NotFound {
		t.Errorf("somebody else's: %v", err)
	}
	if _, err := s.RemovedApp(t.Context(), "/srv/shop", "alice", 8); errs.KindOf(err) != errs.NotFound {
		t.Errorf("another alice's: %v", err)
	}
	old, err := s.RemovedApp(t.Context(), "/srv/shop", "alice", 7)
	if err != nil || old.ID != "app-1" {
		t.Fatalf("%v, %v", old, err)
	}
	old.RemovedAt = nil
	if err := s.PutApp(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	s.Close()
	apps, err := open(t, path).Apps(t.Context())
	if err != nil || len(apps) != 1 || apps[0].OwnerUID != 7 || apps[0].Slug != "shop" {
		t.Errorf("after a restart: %v, %v", apps, err)
	}
}

func checkpoint(id ipc.CheckpointID) Checkpoint {
	c := Checkpoint{Checkpoint: ipc.Checkpoint{ID: id, AppID: "app-1", CreatedAt: time.Unix(3, 0).UTC()}}
	c.Snapshots = []Snapshot{
		{Layer: snap.DB("main"), ID: snap.SnapshotID("db-" + id), Driver: "sqlite", Position: "7"},
		{Layer: snap.Files, ID: snap.SnapshotID("fs-" + id), Driver: "files", Hash: snap.Hash{1, 2}, Quiesced: true},
	}
	return c
}

func TestCheckpoints(t *testing.T) {
	s, _ := newStore(t)
	ctx := t.Context()
	if err := s.PutOperation(ctx, Operation{ID: "op-1", AppID: "app-1", Kind: "create", Plan: []byte(`{}`)}, time.Unix(3, 0)); err != nil {
		t.Fatal(err)
	}
	for _, id := range []ipc.CheckpointID{"cp-1", "cp-2", "cp-3"} {
		if err := s.PutCheckpoint(ctx, checkpoint(id), "op-1"); err != nil {
			t.Fatal(err)
		}
	}
	if ops, err := s.Operations(ctx); err != nil || len(ops) != 0 {
		t.Errorf("the operation is left: %v, %v", ops, err)
	}
	if err := s.SetPinned(ctx, "cp-2", true); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteCheckpoints(ctx, nil, "cp-1", "cp-2"); errs.KindOf(err) != errs.Pinned {
		t.Errorf("a pinned one: %v", err)
	}
	cps, err := s.Checkpoints(ctx, "app-1")
	if err != nil || len(cps) != 3 || cps[0].ID != "cp-3" || !cps[1].Pinned || cps[2].ID != "cp-1" {
		t.Fatalf("%+v, %v", cps, err)
	}
	got, ok := cps[2].Snapshot(snap.Files)
	if want := checkpoint("cp-1").Snapshots[1]; !ok || got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := s.DeleteCheckpoints(ctx, nil, "cp-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Checkpoint(ctx, "app-1", "cp-1"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("a deleted one: %v", err)
	}
	if _, err := s.Checkpoint(ctx, "app-2", "cp-3"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("another app's: %v", err)
	}
}

func TestTurns(t *testing.T) {
	s, _ := newStore(t)
	ctx := t.Context()
	turn := Turn{Turn: ipc.Turn{ID: "t1", AppID: "app-1", Agent: "x"}, Start: "m1"}
	if err := s.PutTurn(ctx, &turn); err != nil {
		t.Fatal(err)
	}
	if err := s.PutCall(ctx, turn.Seq, Call{Call: ipc.Call{ID: "c1"}, Start: "m2"}); err != nil {
		t.Fatal(err)
	}
	open, err := s.OpenTurns(ctx, "app-1")
	if err != nil || len(open) != 1 || open[0].Start != "m1" || open[0].Seq != turn.Seq {
		t.Fatalf("%+v, %v", open, err)
	}
	if in, c, err := s.Call(ctx, "app-1", "c1"); err != nil || in.ID != "t1" || c.Start != "m2" {
		t.Errorf("%+v, %+v, %v", in, c, err)
	}
	if _, _, err := s.Call(ctx, "app-1", "c2"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("an unknown call: %v", err)
	}
	for _, end := range []snap.Mark{"", "m3"} { // before and after its end is known
		check(t, s.NoteEnding(ctx, "app-1", "t1", end))
		check(t, s.PutTurn(ctx, &turn)) // read before its end was announced
		if got, err := s.Turn(ctx, "app-1", "t1"); err != nil || !got.Ending || got.End != end {
			t.Errorf("a turn whose end was announced: %+v, %v", got, err)
		}
	}
	now := time.Unix(9, 0).UTC()
	turn.EndedAt = &now
	if err := s.PutTurn(ctx, &turn); err != nil {
		t.Fatal(err)
	}
	if err := s.DropTurns(ctx, "app-1", turn.Seq+1); err != nil {
		t.Fatal(err)
	}
	if turns, err := s.Turns(ctx, "app-1", 0); err != nil || len(turns) != 0 {
		t.Errorf("%v, %v", turns, err)
	}
}

// TestAuditTampering changes the trail behind the store's back, in each way that there is.
func TestAuditTampering(t *testing.T) {
	for name, crime := range map[string]string{
		"none":          ``,
		"change a body": `UPDATE audit SET body = replace(body, 'delete', 'create') WHERE seq = 3`,
		"change a time": `UPDATE audit SET at = at + 1 WHERE seq = 3`,
		"change an app": `UPDATE audit SET app_id = 'app-9' WHERE seq = 3`,
		"take one out":  `DELETE FROM audit WHERE seq = 3`,
		"first one out": `DELETE FROM audit WHERE seq = 1`,
		"renumber":      `DELETE FROM audit WHERE seq = 3; UPDATE audit SET seq = seq - 1 WHERE seq > 3`,
		"swap":          `UPDATE audit SET seq = 99 WHERE seq = 3; UPDATE audit SET seq = 3 WHERE seq = 4; UPDATE audit SET seq = 4 WHERE seq = 99`,
	} {
		t.Run(name, func(t *testing.T) {
			s, path := newStore(t)
			for i := range 6 {
				e := ipc.AuditEntry{At: time.Unix(int64(i), 0).UTC(), AppID: "app-1", Action: "delete", Target: "cp-1", Result: "ok"}
				if err := s.Audit(t.Context(), e); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(crime); err != nil {
				t.Fatal(err)
			}
			db.Close()
			n, _, err := open(t, path).VerifyAudit(t.Context())
			switch {
			case crime == "" && (err != nil || n != 6):
				t.Errorf("%d, %v", n, err)
			case crime != "" && errs.KindOf(err) != errs.Corrupt:
				t.Errorf("not seen: %v", err)
			}
		})
	}
}

func TestNewerSchema(t *testing.T) {
	s, path := newStore(t)
	if _, err := s.w.Exec(`PRAGMA user_version = 1000; UPDATE schema_version SET version = 1000`); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := Open(t.Context(), path, nil); errs.KindOf(err) != errs.Unsupported || errs.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}

// TestRemoteOfNoApp: a remote of an app that is not there is recorded only while the app is being made from it.
func TestRemoteOfNoApp(t *testing.T) {
	s, _ := newStore(t)
	for _, c := range []struct {
		app   ipc.AppID
		clone *Clone
		kind  errs.Kind
	}{{"app-1", nil, ""}, {"app-2", &Clone{}, ""}, {"app-2", nil, errs.NotFound}} {
		r := Remote{AppID: c.app, RemotePlace: ipc.RemotePlace{Name: "backup"}, Clone: c.clone}
		if err := PutRemote(t.Context(), s, r); errs.KindOf(err) != c.kind {
			t.Errorf("%s, %+v: %v", c.app, c.clone, err)
		}
	}
	check(t, s.PurgeApp(t.Context(), "app-1", nil))
	if list, err := Remotes(t.Context(), s); err != nil || len(list) != 1 || list[0].AppID != "app-2" || list[0].Clone == nil {
		t.Errorf("%+v, %v", list, err)
	}
}
