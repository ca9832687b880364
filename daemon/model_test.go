package daemon_test

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// TestModel walks at random through what people and agents do with an app, and
// compares what the daemon makes of it with a model that a map would do.
func TestModel(t *testing.T) {
	checks, steps := "1", "25"
	if long() {
		checks, steps = "40", "60"
	}
	setFlag(t, "rapid.checks", checks)
	setFlag(t, "rapid.steps", steps)
	cluster := pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})
	tally := map[string]int{}
	testkit.Rapid(t)
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t, rt, cluster)
		defer m.end()
		m.tally = tally
		rt.Repeat(map[string]func(*rapid.T){
			"":               m.invariant,
			"write files":    m.writeFiles,
			"write sqlite":   m.writeSQLite,
			"write postgres": m.writePostgres,
			"create":         m.create,
			"rollback":       m.rollback,
			"turn":           m.turn,
			"undo turn":      m.undoTurn,
			"revert":         m.revert,
			"dry run":        m.dryRun,
			"redo":           m.redo,
			"pin":            m.pin,
			"delete":         m.delete,
			"prune":          m.prune,
			"restart":        m.restart,
			"clock":          m.clock,
		})
	})
	t.Logf("steps done: %v", tally)
}

// setFlag sets a flag for as long as t runs, unless it was given.
func setFlag(t *testing.T, name, value string) {
	t.Helper()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
}

// content is the state of all layers.
type content struct {
	files      map[string]string // folders end in a slash
	sqlite, pg string
}

func (c content) equal(o content) bool {
	return c.sqlite == o.sqlite && c.pg == o.pg && maps.Equal(c.files, o.files)
}

// point is a checkpoint as it should be.
type point struct {
	id     ipc.CheckpointID
	holds  content
	pinned bool
	lacks  wanted // the layers that it does not hold: a safety checkpoint is of what its rollback switches
	safety bool   // a rollback made it, or a revert
}

// call is an agent's, and what it did to files: their contents before and after;
// nil is none.
type call struct {
	id     ipc.CallID
	before point // the turn's checkpoint
	was    map[string]*string
	left   map[string]*string
}

// model is the app and its checkpoints as they should be, beside the real ones.
type model struct {
	w     world
	d     *daemon.Daemon
	skew  atomic.Int64 // of the clock, in nanoseconds
	now   content
	cps   []point // newest first
	calls []call  // newest last
	last  ipc.CheckpointID
	auto  bool // turns are followed
	keep  int
	n     int
	tally map[string]int
}

func newModel(t *testing.T, rt *rapid.T, cluster *pgtest.Cluster) *model {
	m := &model{w: newWorld(t, cluster), auto: rapid.Bool().Draw(rt, "auto"), keep: rapid.IntRange(2, 5).Draw(rt, "keep_last")}
	m.open(rt)
	keep := ipc.DefaultRetention()
	keep.KeepLast, keep.KeepSafety, keep.DailyDays, keep.KeepTurns = m.keep, m.keep-1, 0, 1000
	if _, err := m.d.SetApp(context.Background(), root, "shop", ipc.AppChange{Run: &[]string{}, Retention: &keep, Auto: &m.auto}); err != nil {
		rt.Fatal(err)
	}
	m.now = m.observe(rt)
	return m
}

func (m *model) open(t tester) {
	t.Helper()
	opt := m.w.options()
	opt.Now = func() time.Time { return time.Now().Add(time.Duration(m.skew.Load())) }
	opt.Watches, opt.UpkeepEvery = 0, 50*time.Millisecond // without auto, changes are noted
	d, err := daemon.Open(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	m.d = d
}

func (m *model) end() {
	must(m.d.Close(context.Background()))
	must(os.RemoveAll(m.w.dir))
}

// observe reads the real app.
func (m *model) observe(t tester) content {
	t.Helper()
	c := content{files: map[string]string{}}
	err := filepath.WalkDir(m.w.ws(), func(p string, e fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(strings.TrimPrefix(p, m.w.ws()), "/")
		if err != nil || rel == "" || strings.HasPrefix(rel, "shop.db") {
			return err
		}
		if e.IsDir() {
			c.files[rel+"/"] = ""
			return nil
		}
		b, err := os.ReadFile(p)
		c.files[rel] = string(b)
		return err
	})
	if err == nil {
		c.sqlite, err = m.w.sqliteSays()
	}
	if err == nil {
		c.pg, err = m.w.postgresSays()
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// invariant: the app and the list of checkpoints are as the model has them. Those
// of turns are apart: what people write makes some too, when the daemon gets to it.
func (m *model) invariant(t *rapid.T) {
	if got := m.observe(t); !got.equal(m.now) {
		t.Fatalf("the app is %v, want %v", got, m.now)
	}
	list := slices.DeleteFunc(listed(t, m.d), func(cp ipc.Checkpoint) bool { return cp.Trigger == ipc.TriggerAgent })
	var got, want []string
	for _, cp := range list {
		got = append(got, fmt.Sprint(cp.ID, cp.Pinned))
	}
	m.cps = slices.DeleteFunc(slices.Clone(m.cps), func(p point) bool {
		return m.auto && m.doomed(p) && !slices.ContainsFunc(list, func(cp ipc.Checkpoint) bool { return cp.ID == p.id })
	})
	for _, p := range m.cps {
		want = append(want, fmt.Sprint(p.id, p.pinned))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("listed are %v, want %v", got, want)
	}
	if s := m.d.Status(root); len(s.Problems) > 0 {
		t.Fatalf("problems: %v", s.Problems)
	}
}

// word makes up a content that there has not been.
func (m *model) word() string {
	m.n++
	return fmt.Sprintf("word %d", m.n)
}

func (m *model) writeFiles(t *rapid.T) {
	m.tally["write"]++
	name := rapid.SampledFrom([]string{"file3", "file5", "new", "d/a", "d/b", "e/f/g"}).Draw(t, "name")
	path := filepath.Join(m.w.ws(), name)
	switch rapid.SampledFrom([]string{"write", "write", "remove", "folder"}).Draw(t, "how") {
	case "write":
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.WriteFile(path, []byte(m.word()), 0o644))
	case "remove":
		must(os.RemoveAll(filepath.Join(m.w.ws(), strings.Split(name, "/")[0])))
	case "folder":
		must(os.MkdirAll(path+"-folder", 0o755))
	}
	m.now.files = m.observe(t).files
}

func (m *model) writeSQLite(t *rapid.T) {
	m.tally["write"]++
	m.now.sqlite = m.word()
	m.w.setSQLite(t, m.now.sqlite)
}

func (m *model) writePostgres(t *rapid.T) {
	m.tally["write"]++
	m.now.pg = m.word()
	m.w.setPostgres(t, m.now.pg)
}

// add puts a new checkpoint of holds into the model and lets retention go over it.
func (m *model) add(p point, protected ...ipc.CheckpointID) {
	m.cps = append([]point{p}, m.cps...)
	m.retain(append(protected, p.id)...)
}

// doomed reports whether a checkpoint was only spared: where turns are followed,
// their checkpoints prune behind them at any time.
func (m *model) doomed(p point) bool {
	i := slices.IndexFunc(m.cps, func(o point) bool { return o.id == p.id })
	return i > 0 && !p.pinned && !m.allowed(i)
}

// allowed reports whether the i-th newest is among those of its kind that stay.
func (m *model) allowed(i int) bool {
	keep := m.keep
	if m.cps[i].safety {
		keep = m.keep - 1
	}
	newer := 0
	for _, o := range m.cps[:i] {
		if o.safety == m.cps[i].safety {
			newer++
		}
	}
	return newer < keep
}

// retain drops what is not among the newest, nor pinned, nor protected.
func (m *model) retain(protected ...ipc.CheckpointID) {
	var left []point
	for i, p := range m.cps {
		if i == 0 || m.allowed(i) || p.pinned || slices.Contains(protected, p.id) {
			left = append(left, p)
		}
	}
	m.cps = left
}

func (m *model) create(t *rapid.T) {
	m.tally["create"]++
	pinned := rapid.IntRange(0, 3).Draw(t, "pinned") == 0
	how := rapid.SampledFrom([]ipc.Quiesce{ipc.QuiesceStop, ipc.QuiesceNone}).Draw(t, "quiesce")
	cp, err := m.d.Create(context.Background(), root, "shop", ipc.CreateRequest{Pinned: pinned, Quiesce: how})
	if err != nil {
		t.Fatal(err)
	}
	m.add(point{id: cp.ID, holds: m.now, pinned: pinned})
}

// pick draws a checkpoint, or skips the step where there is none.
func (m *model) pick(t *rapid.T) *point {
	if len(m.cps) == 0 {
		t.Skip("no checkpoint")
	}
	p := &m.cps[rapid.IntRange(0, len(m.cps)-1).Draw(t, "checkpoint")]
	if m.auto && m.doomed(*p) {
		t.Skip("it may go any time")
	}
	return p
}

// scopes are those that a rollback is asked for.
var scopes = [][]string{nil, nil, {"layer:files"}, {"layer:db:main"}, {"layer:db"}, {"layer:shop", "d"}, {"d", "file3"}, {"e"}}

// merged is what a rollback to a point with a scope makes of now.
func merged(now content, p point, scope []string) content {
	to := p.holds
	if p.lacks.files {
		to.files = now.files
	}
	if p.lacks.sqlite {
		to.sqlite = now.sqlite
	}
	if p.lacks.pg {
		to.pg = now.pg
	}
	if scope == nil {
		return to
	}
	files := maps.Clone(now.files)
	got := now
	for _, s := range scope {
		switch s {
		case "layer:files":
			files = to.files
		case "layer:db:main":
			got.pg = to.pg
		case "layer:shop":
			got.sqlite = to.sqlite
		case "layer:db":
			got.pg, got.sqlite = to.pg, to.sqlite
		default:
			within := func(p, _ string) bool { return p == s || strings.HasPrefix(p, s+"/") }
			maps.DeleteFunc(files, within)
			for p, c := range to.files {
				if within(p, c) {
					files[p] = c
				}
			}
		}
	}
	got.files = files
	return got
}

func (m *model) rollback(t *rapid.T) {
	m.goTo(t, *m.pick(t), rapid.SampledFrom(scopes).Draw(t, "scope"))
}

// wanted are layers: those that a scope is of, or that a point lacks.
type wanted struct{ files, sqlite, pg bool }

// layersOf gives the layers that a scope is of.
func layersOf(scope []string) wanted {
	if len(scope) == 0 {
		return wanted{true, true, true}
	}
	var w wanted
	for _, s := range scope {
		switch s {
		case "layer:db:main":
			w.pg = true
		case "layer:shop":
			w.sqlite = true
		case "layer:db":
			w.pg, w.sqlite = true, true
		default:
			w.files = true
		}
	}
	return w
}

// less gives the layers of w that o has not.
func (w wanted) less(o wanted) wanted {
	return wanted{w.files && !o.files, w.sqlite && !o.sqlite, w.pg && !o.pg}
}

// nothing reports whether the point holds nothing of what is in scope.
func (p point) nothing(scope []string) bool { return layersOf(scope).less(p.lacks) == wanted{} }

// missing reports whether a path of the scope is neither there now nor in the point.
func missing(now content, to point, scope []string) bool {
	has := func(files map[string]string, s string) bool {
		for p := range files {
			if p == s || strings.HasPrefix(p, s+"/") {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(scope, func(s string) bool {
		return !to.lacks.files && !strings.HasPrefix(s, "layer:") && !has(now.files, s) && !has(to.holds.files, s)
	})
}

func (m *model) goTo(t *rapid.T, to point, scope []string) {
	m.tally["rollback"]++
	res, err := m.d.Rollback(context.Background(), root, "shop", to.id, ipc.RollbackRequest{Scope: scope}, nil)
	if to.nothing(scope) {
		if errs.KindOf(err) != errs.Conflict {
			t.Fatalf("a rollback to nothing: %v", err)
		}
		return
	}
	if missing(m.now, to, scope) {
		if errs.KindOf(err) != errs.NotFound {
			t.Fatalf("a rollback of what is nowhere: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	after := merged(m.now, to, scope)
	if !res.RolledBack || res.Confidence != 1 || !res.Verification.Match || (res.ChangesTotal > 0) != !after.equal(m.now) {
		t.Fatalf("the receipt says %+v", res)
	}
	m.last = res.SafetyCheckpoint.ID
	all := wanted{true, true, true}
	m.add(point{id: m.last, holds: m.now, lacks: all.less(layersOf(scope).less(to.lacks)), safety: true}, to.id)
	m.now = after
}

// redo goes back over the last rollback, if its safety checkpoint is still there.
func (m *model) redo(t *rapid.T) {
	i := slices.IndexFunc(m.cps, func(p point) bool { return p.id == m.last })
	if i < 0 || m.auto && m.doomed(m.cps[i]) {
		t.Skip("nothing to redo")
	}
	m.goTo(t, m.cps[i], nil)
}

// turn has an agent work: one call that writes some files and removes others.
func (m *model) turn(t *rapid.T) {
	if !m.auto {
		t.Skip("turns are not followed")
	}
	m.tally["turn"]++
	ctx := context.Background()
	if err := followed(ctx, m.d); err != nil {
		t.Fatal(err)
	}
	word := m.word()
	id := ipc.TurnID(word)
	c := call{id: ipc.CallID(word), was: map[string]*string{}, left: map[string]*string{}}
	session := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "session")
	if _, err := m.d.BeginTurn(ctx, root, "shop", ipc.BeginTurn{TurnID: id, ConversationID: session, MessageID: word}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.d.BeginCall(ctx, root, "shop", id, ipc.BeginCall{CallID: c.id, Tool: "Edit", Before: true, DeadlineMS: 10000}); err != nil {
		t.Fatal(err)
	}
	before := m.now
	m.now.files = maps.Clone(before.files)
	for range rapid.IntRange(0, 4).Draw(t, "writes") {
		m.edit(t, &c)
	}
	if _, err := m.d.EndCall(ctx, root, "shop", id, c.id); err != nil {
		t.Fatal(err)
	}
	turn, err := m.d.EndTurn(ctx, root, "shop", id)
	if err != nil {
		t.Fatal(err)
	}
	m.ended(t, turn, c, before)
}

// edit has a call write or remove a file.
func (m *model) edit(t *rapid.T, c *call) {
	name := rapid.SampledFrom([]string{"file3", "file7", "t0", "t1", "t2"}).Draw(t, "name")
	if _, known := c.was[name]; !known {
		c.was[name] = m.says(name)
	}
	path := filepath.Join(m.w.ws(), name)
	if rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
		must(os.RemoveAll(path))
		delete(m.now.files, name)
	} else {
		m.now.files[name] = m.word()
		must(os.WriteFile(path, []byte(m.now.files[name]), 0o644))
	}
	c.left[name] = m.says(name)
}

// says is what a file says now; nil where there is none.
func (m *model) says(name string) *string {
	if s, ok := m.now.files[name]; ok {
		return &s
	}
	return nil
}

func same(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

// ended checks what the daemon made of a turn that was one call.
func (m *model) ended(t *rapid.T, turn ipc.Turn, c call, before content) {
	var paths []string
	for name := range c.was {
		if !same(c.was[name], c.left[name]) {
			paths = append(paths, name)
		}
	}
	slices.Sort(paths)
	got := slices.Sorted(slices.Values(turn.Changes.Paths))
	if len(turn.Warnings) > 0 { // it could not wait
		m.tally["loose turn"]++
		return
	}
	if !slices.Equal(got, paths) || len(paths) > 0 && turn.CheckpointID == nil {
		t.Fatalf("the turn changed %q, and is said to have changed %q, with checkpoint %v", paths, got, turn.CheckpointID)
	}
	if len(paths) == 0 {
		return
	}
	c.before = point{id: *turn.CheckpointID, holds: before}
	m.calls = append(m.calls, c)
}

func (m *model) pickCall(t *rapid.T) call {
	if len(m.calls) == 0 {
		t.Skip("no call")
	}
	last := m.calls[max(0, len(m.calls)-6):]
	return last[rapid.IntRange(0, len(last)-1).Draw(t, "call")]
}

// undoTurn goes back to before a turn, databases and all.
func (m *model) undoTurn(t *rapid.T) {
	c := m.pickCall(t)
	m.tally["undo turn"]++
	m.goTo(t, c.before, nil)
}

// revert undoes what a call wrote, as far as it is still as the call left it.
func (m *model) revert(t *rapid.T) {
	c := m.pickCall(t)
	m.tally["revert"]++
	if err := followed(context.Background(), m.d); err != nil {
		t.Fatal(err)
	}
	res, err := m.d.Revert(context.Background(), root, "shop", ipc.RevertRequest{CallID: c.id})
	if err != nil {
		t.Fatal(err)
	}
	before := m.now
	m.now.files = maps.Clone(before.files)
	restored := []string{}
	for _, name := range slices.Sorted(maps.Keys(c.was)) {
		was, left, now := c.was[name], c.left[name], m.says(name)
		conflict := slices.ContainsFunc(res.Conflicts, func(r ipc.RevertConflict) bool { return r.Path == name })
		switch {
		case same(was, left):
		case same(now, left):
			restored = append(restored, name)
			delete(m.now.files, name)
			if was != nil {
				m.now.files[name] = *was
			}
			if conflict {
				t.Fatalf("%s is as the call left it, and a conflict", name)
			}
		case !same(now, was) && !conflict:
			t.Fatalf("%s was changed since, and is no conflict: %+v", name, res)
		}
	}
	if !slices.Equal(res.RestoredPaths, restored) {
		t.Fatalf("restored are %q, want %q", res.RestoredPaths, restored)
	}
	if len(restored) > 0 {
		m.last = res.SafetyCheckpoint.ID
		m.add(point{id: m.last, holds: before, lacks: wanted{sqlite: true, pg: true}, safety: true})
		m.tally["reverted"]++
	}
}

func (m *model) dryRun(t *rapid.T) {
	to, scope := m.pick(t), rapid.SampledFrom(scopes).Draw(t, "scope")
	m.tally["dry run"]++
	res, err := m.d.Rollback(context.Background(), root, "shop", to.id, ipc.RollbackRequest{Scope: scope, DryRun: true}, nil)
	if to.nothing(scope) && errs.KindOf(err) == errs.Conflict || missing(m.now, *to, scope) && errs.KindOf(err) == errs.NotFound {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if changes := !merged(m.now, *to, scope).equal(m.now); res.RolledBack || (res.ChangesTotal > 0) != changes {
		t.Fatalf("%d changes foreseen, there are any: %v", res.ChangesTotal, changes)
	}
}

func (m *model) pin(t *rapid.T) {
	p := m.pick(t)
	m.tally["pin"]++
	p.pinned = !p.pinned
	if _, err := m.d.Pin(context.Background(), root, "shop", p.id, p.pinned); err != nil {
		t.Fatal(err)
	}
}

func (m *model) delete(t *rapid.T) {
	p := *m.pick(t)
	m.tally["delete"]++
	err := m.d.Delete(context.Background(), root, "shop", p.id)
	if p.pinned {
		if errs.KindOf(err) != errs.Pinned {
			t.Fatalf("deleting a pinned one: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	m.cps = slices.DeleteFunc(m.cps, func(o point) bool { return o.id == p.id })
}

func (m *model) prune(t *rapid.T) {
	m.tally["prune"]++
	if _, err := m.d.Prune(context.Background(), root, "shop", false); err != nil {
		t.Fatal(err)
	}
	m.retain()
}

func (m *model) restart(t *rapid.T) {
	m.tally["restart"]++
	m.w.close(t, m.d)
	m.open(t)
}

// clock sets the host's clock, back too.
func (m *model) clock(t *rapid.T) {
	m.tally["clock"]++
	m.skew.Add(int64(time.Duration(rapid.IntRange(-3, 3).Draw(t, "hours")) * time.Hour))
}
