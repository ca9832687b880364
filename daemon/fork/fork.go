// Package fork makes forks of apps, keeps and drops them. A fork is an app like any other: its folder lies beside its parent's
// workspace, its snapshots in the same content store, and its command runs in namespaces in which the fork is at the parent's path
// (package isolate).
//
// To make a fork, the parent's snapshots are adopted under the fork's name, its files are copied from the parent's as far as these are
// still as in the snapshot, and a rollback of the fork, which has nothing yet, brings the other layers. Its record says that it is being
// made until that is done; after a crash such a fork is dropped. To keep a fork is a rollback as well: the fork's snapshots are adopted by
// the parent, and the parent goes back to them.
package fork

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

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
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/systemd"
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

	naming   sync.Mutex // forks are claimed one after the other, so that each has a name and addresses of its own
	expiring sync.Map   // the owners (app.Owner) whose forks Expire looks at
}

// New returns the service of a daemon's forks.
func New(opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set,
	cps *checkpoint.Service, rollbacks *rollback.Service, reg *registry.Service,
) *Service {
	return &Service{opt: opt, store: store, events: ev, apps: apps, checkpoints: cps, rollbacks: rollbacks, registry: reg}
}

const (
	maxCount  = 16 // forks that one request makes
	maxAtOnce = 4  // of these, how many are made at a time
	minPinned = 3  // from how many on one copy of the files is made for all: for fewer, plain folders cost little more
)

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
	kinds, err := serverKinds(ctx, parent)
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
	pinned, release, err := s.registry.Pinned(ctx, parent, origin, filepath.Dir(first.Workspace), req.Count >= minPinned)
	if err != nil {
		return list, errs.Wrap(errs.Failed, op, err)
	}
	defer release()
	made, failed := make([]ipc.App, req.Count), make([]error, req.Count)
	var work errgroup.Group
	work.SetLimit(maxAtOnce)
	for i := range req.Count {
		a, err := s.claim(ctx, who, parent, origin, req, kinds, pinned)
		if err != nil {
			failed[i] = err
			break
		}
		work.Go(func() error {
			made[i], failed[i] = s.make(ctx, who, parent, a, origin, req)
			return nil
		})
	}
	_ = work.Wait() // each has its own error
	for i := range made {
		if failed[i] == nil && made[i].Fork != nil {
			list.Forks = append(list.Forks, made[i])
		}
	}
	return list, errs.Wrap(errs.Failed, op, cmp.Or(failed...)) // often they have the same one
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
	case !validVariables(req.Set):
		return errs.New(errs.Invalid, "", "set has a name that no variable can have, a value with a NUL byte, or more than 64 KiB").
			WithHint("names have letters, digits and _, and do not begin with a digit")
	case req.Name != "" && !validName(req.Name):
		return errs.New(errs.Invalid, "", "%.64q is not a name for a fork", req.Name).
			WithHint("use at most 32 of a to z, 0 to 9 and -, beginning with a letter or digit")
	}
	if n, most := s.forksOf(rec.ID), s.opt.MaxForks; most > 0 && n+req.Count > most {
		return errs.New(errs.Denied, "", "the app has %d forks, and may have %d", n, most).WithHint("drop some: `mulligan drop FORK`; max_forks in mulligand.toml is the limit")
	}
	if err := parent.Now.Load().CheckGuest(ctx); err != nil {
		return err
	}
	inContainers := engine.Names(rec.Unit)
	if inContainers {
		if err := s.checkProject(ctx, parent, req); err != nil {
			return err
		}
	}
	if rec.Unit != "" && !inContainers && !layer.StartsDomain(parent.Unit()) {
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

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// validVariables reports whether a fork can have these variables.
func validVariables(set map[string]string) bool {
	size := 0
	for name, value := range set {
		if size += len(name) + len(value); !variableName.MatchString(name) || strings.Contains(value, "\x00") {
			return false
		}
	}
	return size <= 64<<10
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

// find finds a fork of the app called ref by its name. Like the app, it is asked for then.
func (s *Service) find(who ipc.Caller, ref, name string) (parent, fork *app.App, err error) {
	parent, err = s.apps.Find(who, ref)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range s.apps.All() {
		if f := a.Rec().Fork; f != nil && f.Parent == parent.Rec().ID && (f.Name == name || a.Rec().Slug == name) {
			if who != accounts.Self() {
				s.apps.Touch(a)
			}
			return parent, a, nil
		}
	}
	return nil, nil, errs.New(errs.NotFound, "find fork", "%s has no fork %.64q", parent.Rec().Slug, name).
		WithHint("`mulligan forks` lists them")
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
	if err := rollback.CheckScope(ctx, parent, a, req.Scope); err != nil {
		return res, errs.Wrap(errs.Invalid, op, err)
	}
	if !req.DryRun && !req.AndStay {
		if err := s.registry.CheckDrop(ctx, a); err != nil {
			return res, errs.Wrap(errs.Failed, op, err)
		}
	}
	ctx = context.WithoutCancel(ctx)
	seeded, err := s.apps.SeededLayers(a.Rec())
	if err != nil {
		return res, err
	}
	// A fork that is dropped afterwards does not run meanwhile, because what it writes would be lost; nor does one whose servers' files are kept.
	paused := !req.DryRun && (!req.AndStay || len(seeded) > 0 || len(a.Rec().Fork.Dotenv) > 0)
	var running, healthy *bool
	if paused {
		if running, healthy, err = s.apps.PresentCondition(ctx, a); err != nil {
			return res, errs.Wrap(errs.Failed, op, err)
		}
		stop := s.pause
		if len(a.Rec().Fork.Dotenv) > 0 {
			stop = s.lend
		}
		begin, failed := stop(ctx, a)
		defer func() {
			if left := s.beginAgain(a, begin); left != nil {
				res.Warnings = append(res.Warnings, fmt.Sprintf("the fork %s could not be started again: %s", name, errs.Words(left)))
				if err != nil { // perhaps there is no receipt
					err = errs.Also(err, left)
				}
			}
		}()
		if failed != nil {
			return res, errs.Wrap(errs.Failed, op, failed)
		}
	}
	made, err := s.checkpoints.Create(ctx, who, string(a.Rec().ID), ipc.CreateRequest{Notes: "kept"}, seeded...)
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	state, err := s.store.Checkpoint(ctx, a.Rec().ID, made.ID)
	if err != nil {
		return res, err
	}
	state.Pinned = false
	if paused { // how the fork was before says how the app has to be with its state
		state.Running, state.Healthy = running, healthy
	}
	var without []string
	if req.DryRun {
		without = seeded
	}
	cp, err := s.adopt(ctx, a, parent, state, fmt.Sprintf("fork %s", a.Rec().Fork.Name), without...)
	forget := func() error { // what lacks layers is no place to go to
		if len(seeded) == 0 {
			return nil
		}
		return s.checkpoints.Delete(ctx, accounts.Self(), string(a.Rec().ID), made.ID)
	}
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, errs.Also(err, forget()))
	}
	res, err = s.rollbacks.Rollback(ctx, who, string(parent.Rec().ID), cp.ID,
		ipc.RollbackRequest{
			Scope: req.Scope, DryRun: req.DryRun, Reason: "keep fork " + a.Rec().Fork.Name, Without: without,
			ConversationID: req.ConversationID, CallID: req.CallID,
		}, nil)
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
	if err != nil {
		return res, errs.Also(err, forget())
	}
	// The app has the fork's state now: what fails from here on is told in the receipt, and is no failure of it.
	stays := req.AndStay
	if !stays {
		if why := s.changedSince(ctx, a, state); why != "" {
			res.Warnings = append(res.Warnings, fmt.Sprintf("the fork %s was not dropped: %s", name, why))
			stays = true
		}
	}
	if stays {
		if err := forget(); err != nil {
			res.Warnings = append(res.Warnings, fmt.Sprintf("the checkpoint %s of the fork lacks layers, and could not be deleted: %s", made.ID, errs.Words(err)))
		}
	} else if err := s.drop(ctx, who, a); err != nil {
		res.Warnings = append(res.Warnings, fmt.Sprintf("the fork %s could not be dropped: %s", name, errs.Words(err)))
	}
	return res, nil
}

// changedSince says what has changed in the folder of a fork since cp, its checkpoint, as by an editor; "": nothing has. Servers, volumes and disks are left
// out: to compare them takes long, and what writes to them is stopped, except a guest.
func (s *Service) changedSince(ctx context.Context, a *app.App, cp store.Checkpoint) (why string) {
	for _, l := range a.Layers() {
		held, ok := cp.Snapshot(l.Name)
		differ, can := l.Driver.(snap.Differ)
		if !ok || !can || l.Family != "files" && l.Family != "sqlite" {
			continue
		}
		switch changes, err := differ.Diff(ctx, held.ID, "", nil); {
		case err != nil && l.Name != snap.Files && layer.Unreadable(err): // as a damaged database, which was captured byte by byte
		case err != nil:
			return "what has changed in it since it was captured is not known: " + errs.Words(err)
		case len(changes) > 0:
			return fmt.Sprintf("%s has changed in it since it was captured, which the app does not have; keep it again, or drop it", changes[0].Path)
		}
	}
	return ""
}

// beginAgain starts what was stopped of a fork, unless the fork is dropped, or was in part.
func (s *Service) beginAgain(a *app.App, begin func() error) error {
	if _, err := s.apps.Find(accounts.Self(), string(a.Rec().ID)); err != nil || a.Rec().Fork.Making {
		return nil
	}
	return begin()
}

// pause stops a fork, except its guest, and those of its database servers whose files are kept, and ends what others run inside. begin starts again what ran of the fork
// itself, as does the next start of the daemon after a crash.
func (s *Service) pause(ctx context.Context, a *app.App) (begin func() error, err error) {
	begin = func() error { return nil }
	release, err := s.apps.Acquire(ctx, a, "keep fork", accounts.Self())
	if err != nil {
		return begin, err
	}
	defer release()
	stop, again := false, false
	if a.Unit() != nil {
		st, err := a.Unit().State(ctx)
		if err != nil {
			return begin, err
		}
		stop, again = !st.Down(), st.Intent() == systemd.Up // also one that is not well
	}
	admit, err := s.apps.EndInside(ctx, a)
	if err != nil {
		return begin, err
	}
	mark := func(lent bool) error { return s.apps.ChangeFork(ctx, a, func(f *ipc.Fork) { f.Lent = lent }) }
	begin = func() error {
		defer admit()
		release, err := s.apps.AcquireBrief(ctx, a, "keep fork")
		if err != nil {
			return err
		}
		defer release()
		err = s.apps.StartSeeded(ctx, a.Now.Load())
		if err != nil || !stop {
			return err
		}
		if err := s.apps.StartAgain(ctx, a, again); err != nil {
			return err // the record says that it was stopped: the daemon's next start tries again
		}
		return mark(false)
	}
	if stop {
		if err := mark(true); err != nil { // it is recorded before the stop, or the fork runs on
			return func() error { admit(); return nil }, err
		}
		if err := s.apps.PauseHost(ctx, a); err != nil {
			return begin, err
		}
	}
	return begin, a.Now.Load().StopSeeded(ctx)
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
