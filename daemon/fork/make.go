package fork

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// claim registers a fork of which nothing is made yet. Its folder will be mounted over the copy of files in pinned, if that is not empty.
func (s *Service) claim(ctx context.Context, who ipc.Caller, parent *app.App, origin store.Checkpoint, req ipc.ForkRequest, kinds map[string]string, pinned string) (a *app.App, err error) {
	for again := true; again; {
		rec, err := s.describe(ctx, parent, origin, req, kinds)
		if err != nil {
			return nil, err
		}
		if err := s.opt.Failpoint.At("fork: described"); err != nil {
			return nil, err
		}
		rec.Fork.Pinned = pinned
		a, again, err = s.claimAs(ctx, who, rec, req.Name == "")
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// claimAs registers a fork by its record. again reports that it did not, because another fork has got one of its addresses since they were chosen, or its
// name, if that was chosen too.
func (s *Service) claimAs(ctx context.Context, who ipc.Caller, rec store.App, chosen bool) (a *app.App, again bool, err error) {
	s.naming.Lock() // not while the fork is described: for that, files and servers are asked that may not answer
	defer s.naming.Unlock()
	addresses := map[string]bool{}
	addForkAddresses(s.apps.Records(), addresses)
	outdated := slices.ContainsFunc(rec.Fork.Ports, func(p ipc.ForkPort) bool { return addresses[p.Address] })
	if outdated || chosen && s.names(rec.Fork.Parent)[rec.Fork.Name] {
		return nil, true, nil
	}
	a, err = s.registry.ClaimFork(ctx, who, rec)
	return a, false, err
}

// make makes a fork that was claimed. If it fails, nothing is left of the fork.
func (s *Service) make(ctx context.Context, who ipc.Caller, parent, a *app.App, origin store.Checkpoint, req ipc.ForkRequest) (ipc.App, error) {
	rec := a.Rec()
	if err := s.registry.OpenFork(ctx, a, func() error { return s.seedLayers(ctx, parent, rec, origin) }); err != nil {
		return ipc.App{}, err
	}
	if err := s.fill(ctx, parent, a, origin, req); err != nil {
		return ipc.App{}, errs.Also(err, s.registry.AbandonFork(ctx, who, a))
	}
	s.events.WriteAudit(ctx, parent.Rec(), who, "fork", rec.Fork.Name, "", nil, app.WithoutSecrets(a.Rec().App))
	return a.View(ctx), nil
}

// fill brings the fork to its origin, and starts it.
func (s *Service) fill(ctx context.Context, parent, a *app.App, origin store.Checkpoint, req ipc.ForkRequest) error {
	var mounted []string // a pinned copy has the files of the origin
	if a.Rec().Fork.Pinned != "" {
		mounted = []string{string(snap.Files)}
	}
	var err error
	if a.Rec().Fork.Project != "" {
		err = s.restoreProject(ctx, parent, a, origin, req)
	} else {
		err = s.restore(ctx, parent, a, origin, req, mounted...)
	}
	if err != nil {
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

// restore takes a new fork to its origin. there has the names of layers that are there already.
func (s *Service) restore(ctx context.Context, parent, a *app.App, origin store.Checkpoint, req ipc.ForkRequest, there ...string) error {
	origin.Pinned = true // what the fork changed is known as long as the fork exists
	cp, err := s.adopt(ctx, parent, a, origin, "the state of "+string(origin.ID)+" of "+parent.Rec().Slug)
	if err != nil {
		return err
	}
	whole, err := s.apps.SeededLayers(a.Rec())
	if err != nil {
		return err
	}
	if a.Rec().Domain != "" {
		whole = append(whole, string(snap.Disk))
	}
	whole = append(whole, there...)
	seeded, err := s.seed(ctx, parent, a, cp, there)
	if err != nil {
		return err
	}
	onHost := a.Rec().Fork.Isolation == ipc.IsolationPorts
	start := !req.NoStart && a.Unit() != nil && !onHost
	if err := s.bringRest(ctx, a, cp, append(whole, seeded...), start); err != nil || !onHost {
		return err
	}
	return s.settle(ctx, parent, a, cp, req)
}

// bringRest takes those layers of a fork to its first checkpoint that are not there yet, by a rollback, and starts the fork if start is set.
// whole has the names of the others.
func (s *Service) bringRest(ctx context.Context, a *app.App, cp store.Checkpoint, whole []string, start bool) error {
	lacks := func(l layer.Layer) bool { return !slices.Contains(whole, string(l.Name)) }
	if !slices.ContainsFunc(a.Layers(), lacks) {
		if !start {
			return nil
		}
		return s.rollbacks.Begin(ctx, a, cp)
	}
	rollback := ipc.RollbackRequest{Reason: "fork", Without: whole}
	if a.Unit() != nil {
		rollback.Start = &start
	}
	res, err := s.rollbacks.Rollback(ctx, accounts.Self(), string(a.Rec().ID), cp.ID, rollback, nil)
	if err != nil {
		return err
	}
	// Its safety checkpoint is of an empty fork, where neither redo nor anybody else should go.
	err = s.checkpoints.Delete(ctx, accounts.Self(), string(a.Rec().ID), res.SafetyCheckpoint.ID)
	s.checkpoints.NoteBehind(ctx, a) // nothing is: what the rollback left as it was has the state of the origin
	return err
}

// seed brings those layers of a fork to its first checkpoint that nobody uses yet and that can be copied from the parent in part. It returns
// their names. There is nothing in them to be kept: no safety checkpoint is made, and after a crash the fork is dropped. Those in
// there are left out.
func (s *Service) seed(ctx context.Context, parent, a *app.App, cp store.Checkpoint, there []string) (names []string, err error) {
	release, err := s.apps.Acquire(ctx, a, "fork", accounts.Self())
	if err != nil {
		return nil, err
	}
	defer release()
	for _, l := range a.Layers() {
		held, ok := cp.Snapshot(l.Name)
		theirs, known := parent.Layer(l.Name)
		seeder, can := l.Driver.(snap.Seeder)
		if !ok || !known || !can || held.Raw || slices.Contains(there, string(l.Name)) {
			continue
		}
		if err := seeder.Seed(ctx, theirs.Driver, held.ID); err != nil {
			return nil, err
		}
		if err := s.opt.Failpoint.At("seeded " + string(l.Name)); err != nil {
			return nil, err
		}
		names = append(names, string(l.Name))
	}
	return names, nil
}

// adopt makes a checkpoint of to that holds the same states as one of from, and is pinned if that is. It lacks the layers in without.
func (s *Service) adopt(ctx context.Context, from, to *app.App, cp store.Checkpoint, notes string, without ...string) (made store.Checkpoint, err error) {
	first := s.firstParent(to) // each holds its parent meanwhile
	first.Adopting.Lock()
	defer first.Adopting.Unlock()
	for _, a := range []*app.App{from, to} {
		release, err := s.apps.Acquire(ctx, a, "fork", accounts.Self())
		if err != nil {
			return made, err
		}
		defer release()
	}
	var files []string // the layers of which the fork's files are taken, and not a snapshot
	if f := from.Rec().Fork; f != nil && f.Parent == to.Rec().ID {
		if files, err = s.apps.SeededLayers(from.Rec()); err != nil {
			return made, err
		}
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
		if !ok && !slices.Contains(files, string(l.Name)) || !there {
			return made, errs.New(errs.Conflict, "", "checkpoint %s was made before the app had the layer %s", cp.ID, l.Name).WithHint("use a newer checkpoint")
		}
		got, err := s.adoptLayer(ctx, from, to, l, theirs, held.ID, ids[i])
		if err != nil {
			return made, err
		}
		made.Snapshots = append(made.Snapshots, store.Snapshot{
			Layer: l.Name, ID: got.ID, Driver: got.Driver, Hash: got.Hash, Position: got.Position, Quiesced: held.Quiesced || !ok && got.Quiesced, Raw: held.Raw || got.Raw,
		})
	}
	err = s.checkpoints.Record(ctx, to, &made, "")
	return made, err
}

// firstParent returns the app that an app is a fork of, directly or not, and that is no fork itself.
func (s *Service) firstParent(a *app.App) *app.App {
	for f := a.Rec().Fork; f != nil; f = a.Rec().Fork {
		parent, err := s.apps.Find(accounts.Self(), string(f.Parent))
		if err != nil { // it was removed
			return a
		}
		a = parent
	}
	return a
}

// adoptLayer stores the state of a layer that another app has as one of to's layer l. One of the two apps is a fork of the other. If the
// parent's driver manages the files of a database's server, the fork has the same files: then these are kept, or the fork's database is read.
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
	case fork == to && slices.Contains(seeded, string(l.Name)): // as were the data of its server
		return layer.CaptureSeeded(ctx, l, as)
	case !slices.Contains(seeded, string(l.Name)):
		adopter, ok := l.Driver.(snap.Adopter)
		if !ok {
			return snap.Snapshot{}, errs.New(errs.Unavailable, "", "%s of %s cannot be used at present", l.Name, to.Rec().Slug).WithHint("`mulligan status` says why")
		}
		return adopter.Adopt(ctx, theirs.Driver, id, as)
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
	if engine.Names(was.Unit) {
		err := s.onProject(ctx, parent, &rec, req.Set)
		return rec, err
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
	if req.NoNetwork {
		was.Forking.Network = new(false)
		rec.Forking.Network = was.Forking.Network
	}
	if err := s.isolate(was, rec.Fork); err != nil {
		return rec, err
	}
	if rec.Fork.Isolation == ipc.IsolationPorts {
		rec.Fork.ParentPath = rec.Workspace
		err := s.onHost(ctx, was, &rec, req.Set)
		return rec, err
	}
	if why := layer.NoWayOut(rec); why != "" {
		rec.Fork.Notes = append(rec.Fork.Notes, why)
	}
	rec.Fork.ParentUnit = was.Unit
	env := maps.Clone(req.Set)
	if f := was.Fork; f != nil { // a fork of a fork sees itself where the first parent is
		rec.Fork.ParentPath, rec.Fork.ParentUnit = f.ParentPath, f.ParentUnit
		if env = maps.Clone(f.Env); env == nil {
			env = map[string]string{}
		}
		maps.Copy(env, req.Set)
	}
	if rec.Fork.Env = env; len(env) > 0 && rec.Fork.ParentUnit != "" {
		return rec, errs.New(errs.Unsupported, "", "the app is run by the unit %s, and variables can be set for forks that mulligan runs itself", rec.Fork.ParentUnit).
			WithHint("put them into a file in the workspace that the unit reads with EnvironmentFile=, and change it in the fork's folder")
	}
	if unit := rec.Fork.ParentUnit; unit != "" {
		rec.Unit = layer.CopyName(rec.ID, unit)
	}
	err := s.ports(was.Fork, &rec)
	return rec, err
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
	taken := s.names(parent)
	for n := 1; ; n++ {
		if name := strconv.Itoa(n); !taken[name] {
			return name
		}
	}
}

// names returns the names of an app's forks.
func (s *Service) names(parent ipc.AppID) map[string]bool {
	taken := map[string]bool{}
	for _, rec := range s.apps.Records() {
		if rec.Fork != nil && rec.Fork.Parent == parent {
			taken[rec.Fork.Name] = true
		}
	}
	return taken
}
