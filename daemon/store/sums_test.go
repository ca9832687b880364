package store

import (
	"cmp"
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// corrupted fails the test unless err says damage.
func corrupted(t *testing.T, what string, err error) {
	t.Helper()
	if errs.KindOf(err) != errs.Corrupt {
		t.Errorf("%s: %v", what, err)
	}
}

// filled is a database with a row in each table.
func filled(t *testing.T) (*Store, string) {
	t.Helper()
	s, path := newStore(t)
	ctx := t.Context()
	check(t, s.PutOperation(ctx, Operation{ID: "op-1", AppID: "app-1", Kind: "rollback", Plan: []byte(`{}`)}, time.Unix(3, 0)))
	check(t, s.PutCheckpoint(ctx, checkpoint("cp-1"), ""))
	check(t, s.PutCheckpoint(ctx, checkpoint("cp-2"), ""))
	turn := Turn{Turn: ipc.Turn{ID: "t1", AppID: "app-1"}, Start: "m1"}
	check(t, s.PutTurn(ctx, &turn))
	check(t, s.PutCall(ctx, turn.Seq, Call{Call: ipc.Call{ID: "c1"}}))
	check(t, s.PutPointer(ctx, "app-1", "c", Pointer{MessageID: "m"}))
	_, err := s.BeginOwnWrites(ctx, "app-1", "m3", time.Unix(5, 0))
	check(t, err)
	check(t, s.PutToken(ctx, Token{Token: ipc.Token{ID: "tok-1"}, Hash: []byte{1}}))
	check(t, s.PutDisposals(ctx, Disposal{Kind: DisposeSnapshot, ID: "fs-9", AppID: "app-1", Layer: snap.Files, Cause: "a test"}))
	check(t, PutRemote(ctx, s, Remote{AppID: "app-1", RemotePlace: ipc.RemotePlace{Name: "backup"}}))
	for range 3 {
		check(t, s.Audit(ctx, ipc.AuditEntry{AppID: "app-1", Action: "create", Result: "ok"}))
	}
	return s, path
}

// readAll reads something of each table.
var readAll = map[string]func(context.Context, *Store) error{
	"apps":          func(ctx context.Context, s *Store) error { _, err := s.AllApps(ctx); return err },
	"checkpoints":   func(ctx context.Context, s *Store) error { _, err := s.Checkpoint(ctx, "app-1", "cp-1"); return err },
	"operations":    func(ctx context.Context, s *Store) error { _, err := s.Operations(ctx); return err },
	"turns":         func(ctx context.Context, s *Store) error { _, err := s.Turns(ctx, "app-1", 0); return err },
	"calls":         func(ctx context.Context, s *Store) error { _, err := s.Calls(ctx, 1); return err },
	"tokens":        func(ctx context.Context, s *Store) error { _, err := s.Tokens(ctx); return err },
	"conversations": func(ctx context.Context, s *Store) error { _, err := s.Pointer(ctx, "app-1", "c"); return err },
	"own_writes":    func(ctx context.Context, s *Store) error { _, err := s.OwnWrites(ctx, "app-1"); return err },
	"remotes":       func(ctx context.Context, s *Store) error { _, err := Remotes(ctx, s); return err },
	"disposals":     func(ctx context.Context, s *Store) error { _, err := s.Disposals(ctx); return err },
}

// TestSums changes each column of each table behind the store's back: reading the row says so.
func TestSums(t *testing.T) {
	s, path := filled(t)
	check(t, s.Close())
	data, err := os.ReadFile(path)
	check(t, err)
	for _, table := range tables {
		for _, col := range table.cols {
			t.Run(table.name+"."+col, func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "mulligan.db")
				check(t, os.WriteFile(path, data, 0o600))
				s := open(t, path)
				check(t, readAll[table.name](t.Context(), s))
				row := map[string]string{"checkpoints": "id = 'cp-1'"}[table.name]
				for _, q := range []string{
					`DROP TRIGGER ` + table.name + `_changed`, `DROP TRIGGER ` + table.name + `_kept`, `PRAGMA foreign_keys = 0`,
					`UPDATE ` + table.name + ` SET "` + col + `" = CASE typeof("` + col + `") WHEN 'integer' THEN "` + col + `" + 1024
						WHEN 'blob' THEN x'07' WHEN 'null' THEN 7 ELSE "` + col + `" || ' ' END WHERE ` + cmp.Or(row, "1"),
				} {
					_, err := s.w.Exec(q)
					check(t, err)
				}
				err := s.checkSums(t.Context())
				corrupted(t, "all sums", err)
				s.Close()
				_, err = Open(t.Context(), path, nil)
				corrupted(t, "opening it", err)
			})
		}
	}
}

// spoil makes rows look damaged.
func spoil(t *testing.T, s *Store, table, where string) {
	t.Helper()
	_, err := s.w.Exec(`UPDATE ` + table + ` SET sum = x'00' WHERE ` + where)
	check(t, err)
}

// TestDamagedRow: what is damaged is not given, and not written over.
func TestDamagedRow(t *testing.T) {
	for table, read := range readAll {
		s, _ := filled(t)
		spoil(t, s, table, "1")
		corrupted(t, table, read(t.Context(), s))
	}
	s, _ := filled(t)
	ctx := t.Context()
	spoil(t, s, "checkpoints", "id = 'cp-1'")
	cps, err := s.Checkpoints(ctx, "app-1")
	if err != nil || len(cps) != 2 || cps[0].Damaged != "" || cps[0].ID != "cp-2" || cps[1].Damaged == "" || cps[1].ID != "cp-1" {
		t.Errorf("%+v, %v", cps, err)
	}
	corrupted(t, "pin it", s.SetPinned(ctx, "cp-1", true))
	corrupted(t, "replace it", s.PutCheckpoint(ctx, checkpoint("cp-1"), ""))
	corrupted(t, "delete it", s.DeleteCheckpoints(ctx, nil, "cp-2", "cp-1"))
	if _, err := s.Checkpoint(ctx, "app-1", "cp-2"); err != nil {
		t.Errorf("the other one is gone: %v", err)
	}
	check(t, s.DeleteCheckpoints(ctx, nil, "cp-2"))
}

// TestDisposals: what a checkpoint held is to be dropped once it is deleted, and what it holds is not.
func TestDisposals(t *testing.T) {
	s, _ := newStore(t)
	ctx := t.Context()
	want := func(when string, ids ...string) {
		t.Helper()
		list, err := s.Disposals(ctx)
		check(t, err)
		var got []string
		for _, d := range list {
			got = append(got, d.ID)
		}
		if strings.Join(got, " ") != strings.Join(ids, " ") {
			t.Errorf("%s: to be dropped are %q, and not %q", when, got, ids)
		}
	}
	cp := checkpoint("cp-1")
	made := []Disposal{{Kind: DisposeSnapshot, ID: "db-cp-1", AppID: "app-1"}, {Kind: DisposeSnapshot, ID: "fs-cp-1", AppID: "app-1"}}
	check(t, s.PutOperation(ctx, Operation{ID: "op-1", AppID: "app-1", Kind: "create"}, time.Unix(3, 0), made...))
	want("announced", "db-cp-1", "fs-cp-1")
	check(t, s.PutCheckpoint(ctx, cp, "op-1"))
	want("recorded")
	cp.Snapshots[1].ID = "fs-new"
	check(t, s.PutCheckpoint(ctx, cp, ""))
	want("replaced", "fs-cp-1")
	list, err := s.Disposals(ctx)
	check(t, err)
	check(t, s.EndDisposals(ctx, list...))
	check(t, s.DeleteCheckpoints(ctx, &ipc.AuditEntry{AppID: "app-1", Action: "delete", Target: "cp-1"}, "cp-1"))
	want("deleted", "cp-1", "db-cp-1", "fs-new")
	if trail, err := s.AuditTrail(ctx, "app-1", 0); err != nil || len(trail) != 1 || trail[0].Action != "delete" {
		t.Errorf("the audit trail has %+v, %v", trail, err)
	}
}

// TestVersion5 reads a database that a mulligan without sums wrote.
func TestVersion5(t *testing.T) {
	s := open(t, copied(t))
	ctx := t.Context()
	apps, err := s.AllApps(ctx)
	if err != nil || len(apps) != 2 || apps[0].FolderUID != 7 || apps[0].RemovedAt != nil || apps[1].RemovedAt == nil {
		t.Errorf("%+v, %v", apps, err)
	}
	cps, err := s.Checkpoints(ctx, "app-1")
	if err != nil || len(cps) != 3 || *cps[0].Notes != "before cp-3" || len(cps[0].Snapshots) != 0 || !cps[1].Pinned || cps[2].Seq != 1 {
		t.Fatalf("%+v, %v", cps, err)
	}
	for i, got := range cps[2].Snapshots {
		if want := checkpoint("cp-1").Snapshots[i]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for table, read := range readAll {
		if err := read(ctx, s); err != nil {
			t.Errorf("%s: %v", table, err)
		}
	}
	if n, _, err := s.VerifyAudit(ctx); n != 3 || err != nil {
		t.Errorf("%d entries, %v", n, err)
	}
	check(t, s.PutCheckpoint(ctx, checkpoint("cp-4"), "op-1"))
	check(t, s.Check(ctx))
}

// TestDamagedVersion5: without sums, nothing of a damaged database is believed unless all can be read.
func TestDamagedVersion5(t *testing.T) {
	path := copied(t)
	data, err := os.ReadFile(path)
	check(t, err)
	for page := 1; page < len(data)/4096; page++ { // all but the first
		clear(data[page*4096 : page*4096+8])
	}
	check(t, os.WriteFile(path, data, 0o600))
	_, err = OpenOrRepair(t.Context(), path, nil, How{Now: time.Unix(9, 0)})
	corrupted(t, "nothing can be read", err)
	now, err := os.ReadFile(path)
	check(t, err)
	if string(now) != string(data) {
		t.Error("the damaged file was changed")
	}
}

func copied(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("testdata/version5.db")
	check(t, err)
	path := filepath.Join(t.TempDir(), "mulligan.db")
	check(t, os.WriteFile(path, data, 0o600))
	return path
}

// TestVacuumedIsPrivate: what a repair makes of a database is the daemon's alone, whatever the umask is.
func TestVacuumedIsPrivate(t *testing.T) {
	path := copied(t)
	old, err := sql.Open("sqlite", dsnLoose(path))
	check(t, err)
	defer old.Close()
	next := path + ".next"
	check(t, (&keeper{}).vacuum(t.Context(), old, next))
	st, err := os.Stat(next)
	check(t, err)
	if st.Mode() != 0o600 || st.Size() == 0 {
		t.Errorf("mode %v, %d bytes", st.Mode(), st.Size())
	}
}

// TestRepair: of a damaged database, all rows that are whole are kept, and the damaged file.
func TestRepair(t *testing.T) {
	s, path := filled(t)
	spoil(t, s, "checkpoints", "id = 'cp-1'")
	spoil(t, s, "tokens", "1")
	check(t, s.Close())
	before, err := os.ReadFile(path)
	check(t, err)
	s, err = OpenOrRepair(t.Context(), path, nil, How{Now: time.Unix(9, 0), Described: true})
	check(t, err)
	defer s.Close()
	ctx := t.Context()
	rep := s.Repair
	if rep == nil || !rep.Anew || len(rep.Kept) != 1 || len(rep.Lost) != 2 || !strings.Contains(rep.Problem, "1 of checkpoints") {
		t.Fatalf("%+v", rep)
	}
	kept, err := os.ReadFile(filepath.Join(filepath.Dir(path), rep.Kept[0]))
	check(t, err)
	if string(kept) != string(before) {
		t.Error("what is kept is not what it was")
	}
	cps, err := s.Checkpoints(ctx, "app-1")
	if err != nil || len(cps) != 1 || cps[0].ID != "cp-2" || cps[0].Seq != 2 {
		t.Errorf("%+v, %v", cps, err)
	}
	for table, read := range readAll {
		if err := read(ctx, s); err != nil && table != "checkpoints" {
			t.Errorf("%s: %v", table, err)
		}
	}
	if turns, err := s.Turns(ctx, "app-1", 0); err != nil || len(turns) != 1 {
		t.Errorf("%v, %v", turns, err)
	}
	if n, _, err := s.VerifyAudit(ctx); n != 3 || err != nil {
		t.Errorf("%d entries, %v", n, err)
	}
	check(t, s.Check(ctx))
	if again := open(t, path); again.Repair != nil {
		t.Error("it was repaired twice")
	}
}

// TestAuditDamage: an entry that is not what was written hides no other.
func TestAuditDamage(t *testing.T) {
	s, _ := filled(t)
	_, err := s.w.Exec(`UPDATE audit SET body = '{' WHERE seq = 2`)
	check(t, err)
	trail, err := s.AuditTrail(t.Context(), "app-1", 0)
	if err != nil || len(trail) != 3 || trail[0].Action != "create" || !strings.HasPrefix(trail[1].Result, "corrupt") || trail[2].Action != "create" {
		t.Errorf("%+v, %v", trail, err)
	}
}
