// Package fork makes forks of apps, keeps and drops them. A fork is an app like any other: its folder lies beside its parent's
// workspace, its snapshots in the same content store, and its command runs in namespaces in which the fork is at the parent's path
// (package isolate).
//
// A fork is made by a rollback: the parent's snapshots are adopted under the fork's name, and the fork, whose folder is missing,
// goes back to them. Its record says that it is being made until that is done; after a crash such a fork is dropped. To keep a fork
// is a rollback as well: the fork's snapshots are adopted by the parent, and the parent goes back to them.
package fork

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/registry"
	"mulligan/daemon/rollback"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// Service makes, keeps and drops forks. Safe for concurrent use.
type Service struct {
	opt         *settings.Options
	store       *records.Records
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	rollbacks   *rollback.Service
	registry    *registry.Service
}

// New returns the service of a daemon's forks.
func New(opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set,
	cps *checkpoint.Service, rollbacks *rollback.Service, reg *registry.Service,
) *Service {
	return &Service{opt: opt, store: store, events: ev, apps: apps, checkpoints: cps, rollbacks: rollbacks, registry: reg}
}

// maxCount bounds how many forks one request makes.
const maxCount = 16

// Fork makes forks of the app called ref, from a checkpoint of it, and starts them.
func (s *Service) Fork(ctx context.Context, who ipc.Caller, ref string, req ipc.ForkRequest) (list ipc.ForkList, err error) {
	const op = "fork"
	parent, err := s.apps.Find(who, ref)
	if err != nil {
		return list, err
	}
	ctx = context.WithoutCancel(ctx)
	if err := s.check(ctx, parent, &req); err != nil {
		return list, errs.Wrap(errs.Invalid, op, err)
	}
	// What would refuse the first fork does so before a checkpoint is made for it.
	kinds, err := parent.Now.Load().ServerKinds(ctx)
	if err != nil {
		return list, errs.Wrap(errs.Failed, op, err)
	}
	first, err := s.describe(ctx, parent, store.Checkpoint{}, req, kinds)
	if err == nil {
		err = s.apps.CheckClaim(first)
	}
	if err == nil {
		err = s.registry.CheckOwnServers(first)
	}
	if err != nil {
		return list, errs.Wrap(errs.Invalid, op, err)
	}
	origin, err := s.origin(ctx, who, parent, req)
	if err != nil {
		return list, errs.Wrap(errs.Failed, op, err)
	}
	for range req.Count {
		f, err := s.make(ctx, who, parent, origin, req, kinds)
		if err != nil {
			return list, errs.Wrap(errs.Failed, op, err)
		}
		list.Forks = append(list.Forks, f)
	}
	return list, nil
}

// check refuses what cannot be forked, before anything is made.
func (s *Service) check(ctx context.Context, parent *app.App, req *ipc.ForkRequest) error {
	rec := parent.Rec()
	req.Count = max(req.Count, 1)
	switch {
	case req.Count > maxCount:
		return errs.New(errs.Invalid, "", "%d forks at once are too many", req.Count).WithHint("ask for at most %d", maxCount)
	case req.Count > 1 && (req.Name != "" || req.Dir != ""):
		return errs.New(errs.Invalid, "", "several forks cannot have one name or folder").WithHint("leave out name and dir, or ask for one fork")
	case req.WithMemory && req.CheckpointID != "":
		return errs.New(errs.Invalid, "", "with_memory is for the checkpoint that a fork from the present state makes").
			WithHint("leave it out: the checkpoint has the memory of its domain, or it has not")
	case req.Name != "" && !validName(req.Name):
		return errs.New(errs.Invalid, "", "%.64q is not a name for a fork", req.Name).
			WithHint("use at most 32 of a to z, 0 to 9 and -, beginning with a letter or digit")
	}
	if n, most := s.forksOf(rec.ID), s.opt.MaxForks; most > 0 && n+req.Count > most {
		return errs.New(errs.Denied, "", "the app has %d forks, and may have %d", n, most).WithHint("drop some: mulligan drop FORK; max_forks in mulligand.toml is the limit")
	}
	if err := parent.Now.Load().CheckGuest(ctx); err != nil {
		return err
	}
	if rec.Unit != "" && !layer.StartsDomain(parent.Unit()) {
		unit := rec.Unit
		if rec.Fork != nil {
			unit = rec.Fork.ParentUnit
		}
		if err := s.registry.CheckForkedUnit(ctx, rec.Slug, unit); err != nil {
			return err
		}
	}
	for _, l := range parent.Layers() {
		if _, ok := l.Driver.(snap.Adopter); !ok {
			return errs.New(errs.Unsupported, "", "forks of %s (%s) are not supported yet", l.Name, l.About)
		}
	}
	for _, db := range rec.Databases {
		if db.Driver != "sqlite" {
			continue
		}
		if dir, _ := layer.PlaceOf(rec.Workspace, db.DSN); dir != rec.Workspace {
			return errs.New(errs.Unsupported, "", "the database %s lies outside of the workspace: forks would share it", db.Name).
				WithHint("move its file into %s", rec.Workspace)
		}
	}
	return nil
}

// forksOf counts the forks of an app.
func (s *Service) forksOf(parent ipc.AppID) (n int) {
	for _, rec := range s.apps.Records() {
		if rec.Fork != nil && rec.Fork.Parent == parent {
			n++
		}
	}
	return n
}

func validName(s string) bool {
	ok := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' }
	return len(s) <= 32 && s[0] != '-' && strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0
}

// origin is the checkpoint that forks begin with: the one that was asked for, or a new one.
func (s *Service) origin(ctx context.Context, who ipc.Caller, parent *app.App, req ipc.ForkRequest) (store.Checkpoint, error) {
	id := req.CheckpointID
	if id == "" {
		made, err := s.checkpoints.Create(ctx, who, string(parent.Rec().ID),
			ipc.CreateRequest{Notes: "before a fork", Quiesce: ipc.QuiesceNone, WithMemory: req.WithMemory})
		if err != nil {
			return store.Checkpoint{}, err
		}
		id = made.ID
	}
	return s.store.Checkpoint(ctx, parent.Rec().ID, id)
}

// make makes one fork.
func (s *Service) make(ctx context.Context, who ipc.Caller, parent *app.App, origin store.Checkpoint, req ipc.ForkRequest, kinds map[string]string) (ipc.App, error) {
	rec, err := s.describe(ctx, parent, origin, req, kinds)
	if err != nil {
		return ipc.App{}, err
	}
	a, err := s.registry.AddFork(ctx, who, rec, func() error { return s.seedLayers(ctx, parent, rec, origin) })
	if err != nil {
		return ipc.App{}, err
	}
	if err := s.fill(ctx, parent, a, origin, req); err != nil {
		return ipc.App{}, errs.Also(err, s.drop(ctx, who, a))
	}
	s.events.WriteAudit(ctx, parent.Rec(), who, "fork", rec.Fork.Name, "", nil, app.WithoutSecrets(a.Rec().App))
	return a.View(ctx), nil
}

// fill brings the fork to its origin, and starts it.
func (s *Service) fill(ctx context.Context, parent, a *app.App, origin store.Checkpoint, req ipc.ForkRequest) error {
	if err := s.restore(ctx, parent, a, origin, req); err != nil {
		return err
	}
	if err := s.opt.Failpoint.At("fork: filled"); err != nil {
		return err
	}
	if a.Rec().Domain != "" && !req.NoStart { // a rollback that leaves the disks alone leaves the domain alone
		if err := s.startFork(ctx, a); err != nil {
			return err
		}
	}
	return s.registry.ForkMade(ctx, a)
}

// restore takes a new fork to its origin.
func (s *Service) restore(ctx context.Context, parent, a *app.App, origin store.Checkpoint, req ipc.ForkRequest) error {
	origin.Pinned = true // what the fork changed is known as long as the fork exists
	cp, err := s.adopt(ctx, parent, a, origin, "the state of "+string(origin.ID)+" of "+parent.Rec().Slug)
	if err != nil {
		return err
	}
	if err := s.seed(ctx, parent, a, cp); err != nil {
		return err
	}
	onHost := a.Rec().Fork.Isolation == ipc.IsolationPorts
	start := !req.NoStart && a.Unit() != nil && !onHost
	rollback := ipc.RollbackRequest{Reason: "fork"}
	if rollback.Without, err = s.apps.SeededLayers(a.Rec()); err != nil {
		return err
	}
	if a.Rec().Domain != "" {
		rollback.Without = append(rollback.Without, string(snap.Disk))
	}
	if a.Unit() != nil {
		rollback.Start = &start
	}
	res, err := s.rollbacks.Rollback(ctx, accounts.Self(), string(a.Rec().ID), cp.ID, rollback, nil)
	if err != nil {
		return err
	}
	// Its safety checkpoint is of an empty folder, where neither redo nor anybody else should go.
	err = s.checkpoints.Delete(ctx, accounts.Self(), string(a.Rec().ID), res.SafetyCheckpoint.ID)
	s.checkpoints.NoteBehind(ctx, a) // nothing is: what the rollback left as it was has the state of the origin
	if err == nil && onHost {
		err = s.settle(ctx, parent, a, cp, req)
	}
	return err
}

// seed copies what the parent still has of the fork's first checkpoint, which is faster than to restore it from the content store. The
// rollback that follows reads the copies, and brings the rest.
func (s *Service) seed(ctx context.Context, parent, a *app.App, cp store.Checkpoint) error {
	release, err := s.apps.Acquire(ctx, a, "fork", accounts.Self())
	if err != nil {
		return err
	}
	defer release()
	for _, l := range a.Layers() {
		held, ok := cp.Snapshot(l.Name)
		theirs, there := parent.Layer(l.Name)
		seeder, can := l.Driver.(snap.Seeder)
		if !ok || !there || !can || held.Raw {
			continue
		}
		if err := seeder.Seed(ctx, theirs.Driver, held.ID); err != nil {
			return err
		}
		if err := s.opt.Failpoint.At("seeded " + string(l.Name)); err != nil {
			return err
		}
	}
	return nil
}

// adopt makes a checkpoint of to that holds the same states as one of from, and is pinned if that is. It lacks the layers in without.
func (s *Service) adopt(ctx context.Context, from, to *app.App, cp store.Checkpoint, notes string, without ...string) (made store.Checkpoint, err error) {
	for _, a := range []*app.App{from, to} {
		release, err := s.apps.Acquire(ctx, a, "fork", accounts.Self())
		if err != nil {
			return made, err
		}
		defer release()
	}
	ids, announced := checkpoint.Announced(to, to.Layers())
	if err := s.store.PutDisposals(ctx, announced...); err != nil {
		return made, err
	}
	made.Checkpoint = cp.Checkpoint
	made.ID, made.AppID, made.Notes = ipc.CheckpointID(records.NewID("cp-")), to.Rec().ID, &notes
	made.Trigger = ipc.TriggerManual
	for i, l := range to.Layers() {
		if err := s.opt.Failpoint.At("adopt " + string(l.Name)); err != nil {
			return made, err
		}
		if slices.Contains(without, string(l.Name)) {
			continue
		}
		held, ok := cp.Snapshot(l.Name)
		theirs, there := from.Layer(l.Name)
		if !ok || !there {
			return made, errs.New(errs.Conflict, "", "checkpoint %s was made before the app had the layer %s", cp.ID, l.Name).WithHint("use a newer checkpoint")
		}
		got, err := s.adoptLayer(ctx, from, to, l, theirs, held.ID, ids[i])
		if err != nil {
			return made, err
		}
		made.Snapshots = append(made.Snapshots, store.Snapshot{
			Layer: l.Name, ID: got.ID, Driver: got.Driver, Hash: got.Hash, Position: got.Position, Quiesced: held.Quiesced, Raw: held.Raw || got.Raw,
		})
	}
	return made, s.checkpoints.Record(ctx, to, &made, "")
}

// adoptLayer stores the state of a layer that another app has as one of to's layer l. One of the two apps is a fork of the other. If the
// parent's driver manages the files of a database's server, the fork has the same files: then the fork's database is read, or its
// server's files are kept.
func (s *Service) adoptLayer(ctx context.Context, from, to *app.App, l, theirs layer.Layer, id, as snap.SnapshotID) (snap.Snapshot, error) {
	fork := from
	if f := to.Rec().Fork; f != nil && f.Parent == from.Rec().ID {
		fork = to
	}
	seeded, err := s.apps.SeededLayers(fork.Rec())
	switch {
	case err != nil:
		return snap.Snapshot{}, err
	case l.Kind == layer.Disk && fork == to: // its disks were made with that state
		return l.Driver.Capture(ctx, snap.CaptureRequest{ID: as})
	case !slices.Contains(seeded, string(l.Name)):
		adopter, ok := l.Driver.(snap.Adopter)
		if !ok {
			return snap.Snapshot{}, errs.New(errs.Unavailable, "", "%s of %s cannot be used at present", l.Name, to.Rec().Slug).WithHint("mulligan status says why")
		}
		return adopter.Adopt(ctx, theirs.Driver, id, as)
	case fork == to:
		return l.Driver.Capture(ctx, snap.CaptureRequest{ID: as})
	}
	return s.apps.AdoptServer(ctx, to.Now.Load(), from.Rec(), l.Name, as)
}

// seedLayers makes the fork's domain, and the data of its servers that its parent's drivers make.
func (s *Service) seedLayers(ctx context.Context, parent *app.App, rec store.App, origin store.Checkpoint) error {
	release, err := s.apps.AcquireBrief(ctx, parent, "fork")
	if err != nil {
		return err
	}
	defer release()
	if err := s.apps.SeedGuest(ctx, parent.Now.Load(), rec, origin); err != nil {
		return err
	}
	return s.apps.SeedServers(ctx, parent.Now.Load(), rec, origin)
}

// describe is the record of a fork to be made. kinds is what the servers of its databases must be like.
func (s *Service) describe(ctx context.Context, parent *app.App, origin store.Checkpoint, req ipc.ForkRequest, kinds map[string]string) (store.App, error) {
	was := parent.Rec()
	rec := was
	rec.ID, rec.CreatedAt, rec.Rev = ipc.AppID(records.NewID("app-")), s.opt.Now().UTC(), 0
	name := req.Name
	if name == "" {
		name = s.freeName(was.ID)
	}
	rec.Slug = was.Slug + "-" + name
	rec.Workspace = req.Dir
	if rec.Workspace == "" {
		rec.Workspace = filepath.Join(forksDir(was.App), name)
	}
	if !filepath.IsAbs(rec.Workspace) || filepath.Clean(rec.Workspace) != rec.Workspace {
		return rec, errs.New(errs.Invalid, "", "%q is not an absolute path", rec.Workspace)
	}
	if state := s.opt.StateDir; rec.Workspace == state || app.Within(state, rec.Workspace) || app.Within(rec.Workspace, state) {
		return rec, errs.New(errs.Invalid, "", "the fork's folder %q and the state folder %q must not contain each other", rec.Workspace, state).
			WithHint("choose another folder with --dir")
	}
	rec.Databases = slices.Clone(was.Databases)
	for i, db := range rec.Databases {
		if db.Driver == "sqlite" {
			_, rec.Databases[i].DSN = layer.PlaceOf(was.Workspace, db.DSN)
		}
		// Whatever the daemon knows of the files of the parent's server is not true of the fork's own.
		rec.Databases[i].DataDir, rec.Databases[i].Unit, rec.Databases[i].Mode, rec.Databases[i].Chosen, rec.Databases[i].Why = "", "", "", "", ""
	}
	rec.Fork = &ipc.Fork{
		Name: name, Parent: was.ID, Origin: origin.ID, ParentPath: was.Workspace, Servers: kinds, Making: true,
	}
	if layer.StartsDomain(parent.Unit()) {
		was.Unit = "" // the daemon starts the fork's domain
	}
	rec.Unit = ""
	if was.Domain != "" {
		rec.Domain = was.Domain + "-fork-" + name
		if len(was.Run) == 0 && was.Unit == "" {
			was.Health, rec.Health = nil, nil // it would ask the parent's guest
		}
	}
	if err := s.isolate(was, rec.Fork); err != nil {
		return rec, err
	}
	if rec.Fork.Isolation == ipc.IsolationPorts {
		rec.Fork.ParentPath = rec.Workspace
		return rec, s.onHost(ctx, was, &rec)
	}
	rec.Fork.ParentUnit = was.Unit
	if f := was.Fork; f != nil { // a fork of a fork sees itself where the first parent is
		rec.Fork.ParentPath, rec.Fork.ParentUnit = f.ParentPath, f.ParentUnit
	}
	if unit := rec.Fork.ParentUnit; unit != "" {
		rec.Unit = layer.CopyName(rec.ID, unit)
	}
	return rec, s.ports(was.Fork, &rec)
}

// forksDir is the folder in which the folders of an app's forks are made.
func forksDir(parent ipc.App) string {
	switch dir := parent.Forking.Dir; {
	case dir == "":
		return filepath.Join(filepath.Dir(parent.Workspace), parent.Slug+"-forks")
	case filepath.IsAbs(dir):
		return dir
	default:
		return filepath.Join(parent.Workspace, dir)
	}
}

// freeName is the smallest number that no fork of the app has as its name.
func (s *Service) freeName(parent ipc.AppID) string {
	taken := map[string]bool{}
	for _, rec := range s.apps.Records() {
		if rec.Fork != nil && rec.Fork.Parent == parent {
			taken[rec.Fork.Name] = true
		}
	}
	for n := 1; ; n++ {
		if name := strconv.Itoa(n); !taken[name] {
			return name
		}
	}
}

// find finds a fork of the app called ref by its name.
func (s *Service) find(who ipc.Caller, ref, name string) (parent, fork *app.App, err error) {
	parent, err = s.apps.Find(who, ref)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range s.apps.All() {
		if f := a.Rec().Fork; f != nil && f.Parent == parent.Rec().ID && (f.Name == name || a.Rec().Slug == name) {
			return parent, a, nil
		}
	}
	return nil, nil, errs.New(errs.NotFound, "find fork", "%s has no fork %.64q", parent.Rec().Slug, name).
		WithHint("mulligan forks lists them")
}

// Forks lists the forks of the app called ref, by name.
func (s *Service) Forks(ctx context.Context, who ipc.Caller, ref string) (list ipc.ForkList, err error) {
	parent, err := s.apps.Find(who, ref)
	if err != nil {
		return list, err
	}
	list.Forks = []ipc.App{}
	for _, a := range s.apps.All() {
		if f := a.Rec().Fork; f != nil && f.Parent == parent.Rec().ID {
			list.Forks = append(list.Forks, a.View(ctx))
		}
	}
	slices.SortFunc(list.Forks, func(x, y ipc.App) int { return compareNames(x.Fork.Name, y.Fork.Name) })
	return list, nil
}

// compareNames orders names, numbers by their value.
func compareNames(x, y string) int {
	if len(x) != len(y) {
		return len(x) - len(y)
	}
	return strings.Compare(x, y)
}

// KeepFork takes the parent to the present state of its fork, and drops the fork.
func (s *Service) KeepFork(ctx context.Context, who ipc.Caller, ref, name string, req ipc.KeepRequest) (res ipc.RollbackResult, err error) {
	const op = "keep fork"
	parent, a, err := s.find(who, ref, name)
	if err != nil {
		return res, err
	}
	if !req.DryRun && !req.AndStay {
		if err := s.registry.CheckDrop(a); err != nil {
			return res, errs.Wrap(errs.Failed, op, err)
		}
	}
	ctx = context.WithoutCancel(ctx)
	if len(a.Rec().Fork.Dotenv) > 0 && !req.DryRun {
		begin, err := s.lend(ctx, a)
		defer s.beginAgain(a, begin)
		if err != nil {
			return res, errs.Wrap(errs.Failed, op, err)
		}
	}
	made, err := s.checkpoints.Create(ctx, who, string(a.Rec().ID), ipc.CreateRequest{Notes: "kept"})
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	state, err := s.store.Checkpoint(ctx, a.Rec().ID, made.ID)
	if err != nil {
		return res, err
	}
	state.Pinned = false
	seeded, err := s.apps.SeededLayers(a.Rec())
	if err != nil {
		return res, err
	}
	if len(seeded) > 0 && !req.DryRun {
		begin, err := s.pause(ctx, a)
		defer s.beginAgain(a, begin)
		if err != nil {
			return res, errs.Wrap(errs.Failed, op, err)
		}
	}
	var without []string
	if req.DryRun {
		without = seeded
	}
	cp, err := s.adopt(ctx, a, parent, state, fmt.Sprintf("fork %s", a.Rec().Fork.Name), without...)
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	res, err = s.rollbacks.Rollback(ctx, who, string(parent.Rec().ID), cp.ID,
		ipc.RollbackRequest{DryRun: req.DryRun, Reason: "keep fork " + a.Rec().Fork.Name, Without: without}, nil)
	if req.DryRun { // what was made to compare is no checkpoint of anybody's
		for _, name := range without {
			res.Warnings = append(res.Warnings, fmt.Sprintf("%s: the app's cluster becomes the fork's as a whole, and what that changes is not listed.", name))
		}
		for _, l := range a.Rec().Fork.Dotenv {
			res.Warnings = append(res.Warnings, fmt.Sprintf("%s: the line of %s becomes the app's own again, unlike what is listed.", l.File, l.Variable))
		}
		for of, id := range map[*app.App]ipc.CheckpointID{parent: cp.ID, a: made.ID} {
			err = errs.Also(err, s.checkpoints.Delete(ctx, accounts.Self(), string(of.Rec().ID), id))
		}
		return res, errs.Wrap(errs.Failed, op, err)
	}
	if err != nil || req.AndStay {
		return res, err
	}
	return res, errs.Wrap(errs.Failed, op, s.drop(ctx, who, a))
}

// beginAgain starts what was stopped of a fork, unless the fork is dropped.
func (s *Service) beginAgain(a *app.App, begin func() error) {
	if _, err := s.apps.Find(accounts.Self(), string(a.Rec().ID)); err != nil {
		return
	}
	if err := begin(); err != nil {
		s.opt.Log.Error("a fork could not be started again", "app", a.Rec().Slug, "err", err)
	}
}

// pause stops a fork and its database servers. begin starts again what ran.
func (s *Service) pause(ctx context.Context, a *app.App) (begin func() error, err error) {
	begin = func() error { return nil }
	release, err := s.apps.Acquire(ctx, a, "keep fork", accounts.Self())
	if err != nil {
		return begin, err
	}
	defer release()
	runs := false
	if a.Unit() != nil {
		st, err := a.Unit().State(ctx)
		if err != nil {
			return begin, err
		}
		runs = st.Running()
	}
	begin = func() error {
		release, err := s.apps.AcquireBrief(ctx, a, "keep fork")
		if err != nil {
			return err
		}
		defer release()
		err = s.apps.StartServers(ctx, a.Now.Load())
		if err == nil && runs {
			err = s.apps.StartUnit(ctx, a)
		}
		return err
	}
	if runs {
		if err := s.apps.StopUnit(ctx, a); err != nil {
			return begin, err
		}
	}
	return begin, a.Now.Load().StopServers(ctx)
}

// DropFork removes a fork and all that was made for it.
func (s *Service) DropFork(ctx context.Context, who ipc.Caller, ref, name string) error {
	_, a, err := s.find(who, ref, name)
	if err != nil {
		return err
	}
	return errs.Wrap(errs.Failed, "drop fork", s.drop(context.WithoutCancel(ctx), who, a))
}

// drop removes the fork's folder after its record says that it is not whole: whoever finds the record goes on with it.
func (s *Service) drop(ctx context.Context, who ipc.Caller, a *app.App) error {
	return s.registry.RemoveFork(ctx, who, a)
}
