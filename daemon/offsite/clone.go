package offsite

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/remote"
	"mulligan/remote/identity"
	"mulligan/snap"
)

// cloning is one clone under way.
type cloning struct {
	s    *Service
	who  ipc.Caller
	req  ipc.CloneRequest
	keys *store.Keys

	place string
	hist  *remote.History
	cp    *remote.Logged
	text  appText
	about aboutText
	spec  ipc.App
	acc   accounts.Account // of the owner
	res   ipc.CloneResult
}

// Clone makes an app from what a remote has of one, and takes it to a checkpoint. Before anything is changed it says what this host
// lacks: an error, if the app cannot be there without it, and else a sentence of the result.
func (s *Service) Clone(ctx context.Context, who ipc.Caller, req ipc.CloneRequest) (ipc.CloneResult, error) {
	const op = "clone"
	c := &cloning{s: s, who: who, req: req, res: ipc.CloneResult{Lacks: []string{}, Warnings: []string{}, DryRun: req.DryRun}}
	err := c.find(ctx)
	if err == nil {
		err = c.describe()
	}
	c.res.App = app.WithoutSecrets(c.spec)
	if err == nil && !req.DryRun {
		err = c.make(context.WithoutCancel(ctx)) // a client that leaves does not stop it
	}
	err = errs.Wrap(errs.Failed, op, err)
	if err != nil && c.res.Rollback != nil {
		body := ipc.Body(err)
		c.res.Error = &body
	}
	return c.res, err
}

// find reads the remote, and finds the checkpoint in it.
func (c *cloning) find(ctx context.Context) error {
	if err := checkCaller(c.who, nil); err != nil {
		return err
	}
	if g := c.who.Grant; g != nil && len(g.Apps) > 0 {
		return errs.New(errs.Denied, "", "this token is for some apps only").WithHint("use a token that was made without --app")
	}
	keys, err := keysOf(c.req.BucketKeys)
	if err != nil {
		return err
	}
	c.keys = keys
	ids, err := identity.Parse(c.req.Identity)
	if err != nil {
		return err
	}
	at := ipc.RemotePlace{URL: c.req.URL, Endpoint: c.req.Endpoint, Region: c.req.Region}
	bucket, err := c.s.open(at, c.s.useBy(c.who, keys))
	if err != nil {
		return err
	}
	snap.Begin(ctx, "reading the remote's log")
	folders, err := bucket.Folders(ctx)
	if err != nil {
		return err
	}
	var found []string
	var closed error
	for _, place := range remote.Places(folders) {
		hist, err := remote.Reader{Bucket: bucket, Place: place, Identities: ids}.Read(ctx)
		if errs.KindOf(err) == errs.Denied {
			closed = err
			continue // another app's, for another identity
		}
		if err != nil {
			return err
		}
		slug := slugOf(hist)
		if slug == "" || c.req.Source != "" && slug != c.req.Source {
			continue
		}
		found = append(found, slug)
		c.place, c.hist = place, hist
	}
	switch {
	case len(found) == 0 && c.req.Source == "" && closed != nil:
		return closed
	case len(found) == 0 && c.req.Source != "":
		return errs.New(errs.NotFound, "", "no app %.64q is on the remote that this identity can read", c.req.Source).WithHint("leave --app out to see which are")
	case len(found) == 0:
		return errs.New(errs.NotFound, "", "nothing is at %s", c.req.URL).WithHint("check the URL; `mulligan remote show` on the first host has it")
	case len(found) > 1:
		slices.Sort(found)
		return errs.New(errs.Conflict, "", "several apps are on the remote: %s", strings.Join(found, ", ")).WithHint("name one with --app; of two with the same name, remove the one that is not meant, or move it to a prefix of its own")
	}
	if name := remote.KeyName(c.hist.Key); c.req.LogKey != "" && c.req.LogKey != name {
		return errs.New(errs.Denied, "", "the log on the remote has the key %s, and not %.64q: it is another log than that of the first host", name, c.req.LogKey).
			WithHint("`mulligan remote show` on the first host has the name of its key; whoever can write to the bucket could have begun a log of their own")
	}
	return c.choose()
}

// slugOf returns the name of the app that a place is of, or "" if no checkpoint there says.
func slugOf(h *remote.History) string {
	for _, cp := range slices.Backward(h.Checkpoints) {
		var text appText
		if json.Unmarshal(cp.App, &text) == nil {
			return text.App.Slug
		}
	}
	return ""
}

// choose finds the checkpoint that was asked for.
func (c *cloning) choose() (err error) {
	if at := string(c.req.Checkpoint); at == "" {
		c.cp, err = c.hist.Newest()
	} else {
		c.cp, err = named(c.hist, at)
	}
	if err != nil {
		return err
	}
	if err = json.Unmarshal(c.cp.App, &c.text); err == nil {
		err = json.Unmarshal(c.cp.About, &c.about)
	}
	if err != nil {
		return &errs.Error{Kind: errs.Corrupt, Message: "the description of " + c.cp.ID + " on the remote is damaged", Err: err}
	}
	c.res.LogKey = remote.KeyName(c.hist.Key)
	c.res.Checkpoint, c.res.MadeAt, c.res.Host = ipc.CheckpointID(c.cp.ID), c.cp.Made, c.cp.Host
	c.res.Warnings = append(append(c.res.Warnings, c.hist.Problems...), c.hist.Warnings...)
	return nil
}

// describe works out what the app is like on this host, and what it lacks here. Whoever could write to the bucket wrote what it works
// from: it is held to the rules for what the caller may register.
func (c *cloning) describe() error {
	spec := c.text.App
	spec.ID, spec.Fork, spec.CreatedAt = "", nil, c.s.opt.Now().UTC()
	spec.Slug, spec.Workspace = or(c.req.Slug, spec.Slug), filepath.Clean(c.req.Dir)
	if !filepath.IsAbs(c.req.Dir) {
		return errs.New(errs.Invalid, "", "%q is not an absolute path", c.req.Dir)
	}
	if err := c.owner(&spec); err != nil {
		return err
	}
	lack := func(format string, args ...any) { c.res.Lacks = append(c.res.Lacks, fmt.Sprintf(format, args...)) }
	root := c.s.apps.Administers(c.who)
	switch {
	case engine.Names(spec.Unit):
		lack("The app's containers (%s) are not here: start them, and name them with `mulligan app set unit=%s`.", spec.Unit, spec.Unit)
		spec.Unit, spec.Engine, spec.EngineAs, spec.Volumes, spec.Containers = "", "", "", nil, nil
	case spec.Unit != "" && !root:
		lack("The app was run by the unit %s, and only root may name units here.", spec.Unit)
		spec.Unit = ""
	}
	if spec.Domain != "" {
		lack("The app's domain %s is not here: disks of domains cannot go to remotes yet.", spec.Domain)
		spec.Domain, spec.URI, spec.Shutdown = "", "", ""
	}
	if c.text.Arch != runtime.GOARCH {
		c.res.Warnings = append(c.res.Warnings, fmt.Sprintf("That host has another kind of processor (%s) than this one (%s): programs in the workspace may not run.", c.text.Arch, runtime.GOARCH))
	}
	parts, err := c.cp.Snapshots()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(parts, func(p remote.Part) bool { return p.Layer == snap.Files }) {
		return errs.New(errs.Unsupported, "", "%s has no files on the remote", c.cp.ID).WithHint("use another checkpoint: --at CP")
	}
	c.res.Lacks = append(c.res.Lacks, c.cp.Left...)
	spec.Databases, err = c.databases(spec.Databases, parts)
	c.spec = spec
	return err
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// owner sets the owner of the app: the caller, or whom root names, or the user who has the name of the owner there.
func (c *cloning) owner(spec *ipc.App) error {
	there := spec.Owner
	spec.Owner = c.req.Owner
	if spec.Owner == "" && !c.s.opt.User && c.s.apps.Administers(c.who) {
		if _, err := accounts.Lookup(there); err != nil {
			return errs.New(errs.NotFound, "", "the app belongs to %.64s there, and this host has no such user", there).WithHint("name a user of this host with --owner")
		}
		spec.Owner = there
	}
	_, uid, err := c.s.apps.OwnerOf(c.who, *spec)
	if err != nil {
		return err
	}
	c.acc = accounts.Account{UID: -1, GID: -1}
	if !c.s.opt.User {
		c.acc = c.s.apps.CallerAccount(ipc.Caller{UID: uid})
	}
	return nil
}

// databases returns the app's databases on this host: those that the checkpoint has, with the addresses that were asked for.
func (c *cloning) databases(there []ipc.Database, parts []remote.Part) (here []ipc.Database, err error) {
	for _, want := range c.req.Databases {
		if !slices.ContainsFunc(there, func(db ipc.Database) bool { return db.Name == want.Name && db.Driver == want.Driver }) {
			return nil, errs.New(errs.NotFound, "", "the app has no %s database %q there", want.Driver, want.Name).WithHint("write --db NAME=URL for one of: %s", names(there))
		}
	}
	for _, db := range there {
		at := slices.IndexFunc(parts, func(p remote.Part) bool { return p.Layer == layer.DbLayer(db) })
		if at < 0 {
			c.res.Lacks = append(c.res.Lacks, fmt.Sprintf("The database %s is not made: the checkpoint on the remote does not have it.", db.Name))
			continue
		}
		db.DataDir, db.Unit, db.Mode, db.Chosen, db.Why = "", "", "", "", ""
		if db.Driver == "postgres" {
			db.Mode = "logical"
		}
		var named ipc.Database
		if i := slices.IndexFunc(c.req.Databases, func(d ipc.Database) bool { return d.Name == db.Name }); i >= 0 {
			named = c.req.Databases[i]
			db.DSN = named.DSN
		}
		if parts[at].Portable.Driver == snap.WholeCluster {
			if named.DataDir == "" {
				return nil, errs.New(errs.Invalid, "", "the checkpoint has the whole cluster of the database %s, and this host's cluster that it is to replace is not named", db.Name).
					WithHint("make an empty cluster of the same version of PostgreSQL, and name it: --db '%s=postgres:///%s#mode=physical&data_dir=DIR&unit=UNIT'", db.Name, db.Name)
			}
			db.Mode, db.DataDir, db.Unit = "physical", named.DataDir, named.Unit
		}
		if db.Driver == "sqlite" && filepath.IsAbs(db.DSN) {
			if rel, ok := strings.CutPrefix(db.DSN, c.text.App.Workspace+"/"); ok {
				db.DSN = rel
			}
		}
		here = append(here, db)
	}
	return here, nil
}

func names(dbs []ipc.Database) string {
	var list []string
	for _, db := range dbs {
		list = append(list, db.Name)
	}
	return strings.Join(list, ", ")
}

// make makes the app. If that fails before the app is at the checkpoint, nothing is left of it.
func (c *cloning) make(ctx context.Context) error {
	t, err := c.plan(ctx)
	if err != nil {
		return err
	}
	a, err := c.register(ctx, t)
	var id ipc.CheckpointID
	if err == nil {
		id, err = c.bring(ctx, t, a)
	}
	if err == nil {
		err = c.goTo(ctx, a, id)
	}
	if r := c.res.Rollback; err != nil && (r == nil || !r.RolledBack) {
		left := c.s.dropClone(ctx, t)
		c.s.noteSettled(t, left)
		return errs.Also(err, left)
	}
	unwell := err
	if err := c.s.finishClone(ctx, t, a); err != nil {
		c.s.noteSettled(t, err)
		return err
	}
	c.s.events.WriteAudit(ctx, a.Rec(), c.who, "clone", c.cp.ID, c.res.Host, unwell, app.WithoutSecrets(a.Rec().App))
	if c.req.TakeOver {
		if err := c.s.takeOver(ctx, a, t); err != nil {
			return errs.Wrap(errs.Failed, "the app is made, and the remote could not be taken over", err)
		}
		c.s.WakePushes()
	}
	c.res.App = a.View(ctx)
	return unwell
}

// plan writes the remote's record, which says that an app is being made in a folder, before anything of it is made.
func (c *cloning) plan(ctx context.Context) (*target, error) {
	place := ipc.RemotePlace{Name: or(c.text.Remote.Name, "origin"), URL: c.req.URL, Endpoint: c.req.Endpoint, Region: c.req.Region, Recipients: c.text.Remote.Recipients}
	if _, err := remote.ParseRecipients(place.Recipients); err != nil || !nameSyntax.MatchString(place.Name) {
		return nil, errs.New(errs.Corrupt, "", "the description of the remote in %s is damaged", c.cp.ID)
	}
	c.res.Remote = place.Name
	missing, err := c.s.apps.FreeFolder(ctx, c.acc, c.spec.Workspace, false)
	if err != nil {
		return nil, err
	}
	r := store.Remote{AppID: ipc.AppID(records.NewID("app-")), RemotePlace: place, Place: c.place, Writer: remote.NewName(), LogKey: c.hist.Key, Keys: c.keys, Added: c.s.opt.Now().UTC(),
		ReadOnly: true, ByRoot: !c.s.opt.User && c.s.apps.Administers(c.who),
		Abilities: ipc.Abilities{Notes: []string{"What the key can do was not checked: `mulligan remote add` with the same name and URL does so."}},
		Clone:     &store.Clone{Dir: c.spec.Workspace, MadeDir: missing, OwnerUID: c.acc.UID}}
	if err := c.s.opt.Failpoint.At("clone: plan"); err != nil {
		return nil, err
	}
	if err := store.PutRemote(ctx, c.s.store.Store, r); err != nil {
		return nil, err
	}
	t := newTarget(r)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.targets[key(r.AppID, r.Name)] = t
	return t, nil
}

// register makes the app's folder, and registers the app.
func (c *cloning) register(ctx context.Context, t *target) (*app.App, error) {
	if _, err := c.s.apps.FreeFolder(ctx, c.acc, c.spec.Workspace, true); err != nil {
		return nil, err
	}
	if err := c.s.opt.Failpoint.At("clone: folder made"); err != nil {
		return nil, err
	}
	return c.s.registry.OpenClone(ctx, c.who, t.record().AppID, c.spec)
}

// forget deletes the record of a remote whose app there is not.
func (s *Service) forget(ctx context.Context, t *target) error {
	r := t.record()
	s.mu.Lock()
	delete(s.targets, key(r.AppID, r.Name))
	s.mu.Unlock()
	return store.DeleteRemote(ctx, s.store.Store, r.AppID, r.Name)
}

// bring fetches the checkpoint, and records it as one of the app's.
func (c *cloning) bring(ctx context.Context, t *target, a *app.App) (ipc.CheckpointID, error) {
	end, err := c.s.fetchAlone(ctx, a.Rec())
	if err != nil {
		return "", err
	}
	defer end()
	release, err := c.s.apps.Acquire(ctx, a, "clone", c.who)
	if err != nil {
		return "", err
	}
	defer release()
	if err := c.s.opt.Failpoint.At("clone: fetch"); err != nil {
		return "", err
	}
	contents, err := c.s.store.Contents.OfApp(a.Rec())
	if err != nil {
		return "", err
	}
	held, err := c.s.download(ctx, a, c.hist, c.cp, contents)
	if err != nil {
		return "", err
	}
	defer held.Discard()
	cp, err := c.s.imported(ctx, a, c.cp, c.about)
	if err != nil {
		return "", err
	}
	c.s.naming.Lock()
	defer c.s.naming.Unlock()
	if cp.ID, err = c.s.freeID(ctx, c.cp, cp); err != nil {
		return "", err
	}
	if err := c.s.change(ctx, t, func(r *store.Remote) {
		clone := *r.Clone
		clone.Checkpoint = cp.ID
		r.Clone = &clone
	}); err != nil {
		return "", err
	}
	err = c.s.checkpoints.Record(ctx, a, &cp, "")
	return cp.ID, err
}

var idSyntax = regexp.MustCompile(`^cp-[0-9a-f]{12,64}$`)

// freeID returns the id that cp, which was imported, has on the remote; or a new one if something here has that id, or cp is not all of what is there: it may be
// sent to the remote, where the last one that has an id counts. s.naming is locked.
func (s *Service) freeID(ctx context.Context, from *remote.Logged, cp store.Checkpoint) (ipc.CheckpointID, error) {
	all, err := s.store.AllCheckpoints(ctx)
	if err != nil {
		return "", err
	}
	id := ipc.CheckpointID(from.ID)
	if len(cp.Snapshots) < len(from.Parts) || !idSyntax.MatchString(string(id)) || slices.ContainsFunc(all, func(cp store.Checkpoint) bool { return cp.ID == id }) {
		return ipc.CheckpointID(records.NewID("cp-")), nil
	}
	return id, nil
}

// goTo takes the app to the checkpoint.
func (c *cloning) goTo(ctx context.Context, a *app.App, id ipc.CheckpointID) error {
	req := ipc.RollbackRequest{Reason: "clone from " + c.res.Host}
	if c.req.NoStart && a.Unit() != nil {
		req.Start = new(bool)
	}
	res, err := c.s.rollbacks.Rollback(ctx, accounts.Self(), string(a.Rec().ID), id, req, nil)
	if len(res.Stages) > 0 {
		c.res.Rollback = &res
	}
	return err
}

// finishClone records that the app is made.
func (s *Service) finishClone(ctx context.Context, t *target, a *app.App) error {
	if err := s.opt.Failpoint.At("clone: made"); err != nil {
		return err
	}
	if err := s.change(ctx, t, func(r *store.Remote) { r.Clone = nil }); err != nil {
		return err
	}
	s.registry.CloneMade(ctx, a)
	return nil
}

// dropClone drops an app that was not made.
func (s *Service) dropClone(ctx context.Context, t *target) error {
	r := t.record()
	err := s.registry.RemoveApp(ctx, accounts.Self(), string(r.AppID), true)
	if errs.KindOf(err) == errs.NotFound { // it was not registered yet
		_, err = s.apps.ClearState(r.AppID)
	}
	if err != nil {
		return err
	}
	if r.Clone.MadeDir {
		whose := accounts.Account{UID: -1, GID: -1}
		if r.Clone.OwnerUID > 0 {
			whose = s.apps.CallerAccount(ipc.Caller{UID: r.Clone.OwnerUID})
		}
		if err := s.apps.RemoveEmptyFolder(ctx, whose, r.Clone.Dir); err != nil {
			return err
		}
	}
	return s.forget(ctx, t)
}

// FinishClones settles the clones that a crash cut short. One that cannot be settled now, as its rollback is not undone yet, is tried again later.
func (s *Service) FinishClones(ctx context.Context) {
	s.mu.Lock()
	list := slices.Collect(maps.Values(s.targets))
	s.mu.Unlock()
	for _, t := range list {
		if t.tryLock() {
			s.settle(ctx, t)
			t.unlock()
		}
	}
}

// settle ends a clone that was cut short: one whose rollback was done is finished, one of which somebody has made checkpoints since is kept, and of
// another nothing is left. What fails is tried again later. t is locked.
func (s *Service) settle(ctx context.Context, t *target) {
	if !t.cutShort(s.opt.Now()) {
		return // it was settled before t was locked
	}
	err := s.opt.Failpoint.At("clone: settle")
	if err == nil {
		err = s.settleOnce(ctx, t)
	}
	if ctx.Err() == nil {
		s.noteSettled(t, err)
	}
}

// noteSettled notes that a clone was settled, or why not: it is tried again later, and the app says so until then.
func (s *Service) noteSettled(t *target, err error) {
	t.noteCut(err, s.opt.Now(), s.opt.UpkeepEvery)
	id := t.record().AppID
	if err != nil {
		s.opt.Log.Error("a clone that was cut short could not be settled, and will be tried again", "app", id, "err", err)
	}
	if a, err := s.apps.Find(accounts.Self(), string(id)); err == nil {
		s.noteProblems(a)
	}
}

// settleOnce makes one try to settle a clone.
func (s *Service) settleOnce(ctx context.Context, t *target) error {
	r := t.record()
	a, err := s.apps.Find(accounts.Self(), string(r.AppID))
	if err != nil {
		switch _, err := s.store.App(ctx, r.AppID); errs.KindOf(err) {
		case errs.NotFound:
			return s.dropClone(ctx, t)
		case "": // somebody removed it, and keeps its checkpoints
			return s.change(ctx, t, func(r *store.Remote) { r.Clone = nil })
		default:
			return err
		}
	}
	release, err := s.apps.AcquireBrief(ctx, a, "settle the clone") // recovers it: only then is its rollback done or undone
	if err != nil {
		return err
	}
	cps, err := s.store.Checkpoints(ctx, r.AppID)
	release()
	if err != nil {
		return err
	}
	fetched := r.Clone.Checkpoint
	back := func(cp store.Checkpoint) bool { return fetched != "" && cp.RollbackTo == fetched }
	switch {
	case slices.ContainsFunc(cps, func(cp store.Checkpoint) bool { return back(cp) && !cp.CalledOff }):
		a.AddRecovery("a clone that was cut short was finished")
	case slices.ContainsFunc(cps, func(cp store.Checkpoint) bool { return cp.ID != fetched && !back(cp) }):
		a.AddRecovery("what is there of a clone that was cut short is kept, because checkpoints were made of it since")
	default:
		return s.dropClone(ctx, t)
	}
	return s.finishClone(ctx, t, a)
}
