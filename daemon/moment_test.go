package daemon_test

import (
	"maps"
	"slices"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// TestAllLayersAtOneMoment takes an app with files, SQLite, Postgres, MariaDB and Redis back and
// forward, with rollbacks between that are called off at some of its layers: at any time all
// of them are in one state, and redo goes where the last rollback that was not called off began.
func TestAllLayersAtOneMoment(t *testing.T) {
	t.Parallel()
	kinds := slices.Sorted(maps.Keys(awayServers))
	servers := map[string]*awayServer{}
	dbs := []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}}
	for _, kind := range kinds {
		s := awayServers[kind](t)
		s.start(t)
		s.db.Name = kind
		servers[kind], dbs = s, append(dbs, s.db)
	}
	set := func(w world, word string) {
		w.set(t, word)
		for _, kind := range kinds {
			servers[kind].set(t, word)
		}
	}
	w := world{dir: worldDir(t)}
	set(w, "zero")
	w = w.register(t, dbs)
	says := func(when, want string) {
		t.Helper()
		if files, sqlite, _, err := w.words(); err != nil || files != want || sqlite != want {
			t.Errorf("%s: files %q, SQLite %q, %v, want %q", when, files, sqlite, err, want)
		}
		for _, kind := range kinds {
			if got := servers[kind].get(t); got != want {
				t.Errorf("%s: %s says %q, want %q", when, kind, got, want)
			}
		}
	}
	var fail failpoint
	opt := w.options()
	opt.Failpoint = fail.step
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	callOff := func(step, now string) {
		t.Helper()
		fail.set(step)
		if res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil); err == nil || res.RolledBack {
			t.Fatalf("a rollback that fails at %q: %v, %+v", step, err, res)
		}
		fail.set("")
		says("called off at "+step, now)
	}

	set(w, "one")
	steps := []string{"commit db:shop"}
	for _, kind := range kinds {
		steps = append(steps, "commit db:"+kind)
	}
	for _, i := range testkit.Sample(t, "steps", len(steps), 2) {
		callOff(steps[i], "one")
	}
	if _, err := d.Rollback(t.Context(), root, "shop", ipc.Redo, ipc.RollbackRequest{}, nil); errs.KindOf(err) != errs.NotFound {
		t.Errorf("redo where every rollback was called off: %v", err)
	}
	says("after a redo of nothing", "one")
	goBack(t, d, cp.ID, ipc.RollbackRequest{})
	says("after the rollback", "zero")
	set(w, "two")
	for _, i := range testkit.Sample(t, "steps", len(steps), 2) {
		callOff(steps[i], "two")
	}
	w.close(t, d)
	d = w.openAs(t, opt)
	goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	says("after redo", "one")
}
