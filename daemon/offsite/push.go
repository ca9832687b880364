package offsite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/remote"
	"mulligan/remote/s3store"
	"mulligan/snap"
)

// appText describes an app in what is sent with each of its checkpoints, sealed.
type appText struct {
	App     ipc.App         `json:"app"` // with the passwords of its databases, which another host needs
	Remote  ipc.RemotePlace `json:"remote"`
	Arch    string          `json:"arch"` // as Go names it
	Version string          `json:"version"`
}

// aboutText describes a checkpoint in what is sent with it, and in the ledger.
type aboutText struct {
	Checkpoint ipc.Checkpoint `json:"checkpoint"`
	Layers     []layerText    `json:"layers"`
}

type layerText struct {
	Layer    snap.Layer `json:"layer"`
	Driver   string     `json:"driver"`
	Position string     `json:"position"`
	Quiesced bool       `json:"quiesced"`
}

// PushAll sends what is to be sent, and settles clones that were cut short, until ctx ends. Each remote has a goroutine of its own, so that none waits for another.
func (s *Service) PushAll(ctx context.Context) {
	tick := time.NewTicker(s.opt.UpkeepEvery)
	defer tick.Stop()
	var work sync.WaitGroup
	defer work.Wait()
	woken := false
	for {
		s.mu.Lock()
		for _, t := range s.targets {
			if woken {
				t.hint()
			}
			if t.cutShort(s.opt.Now()) && t.tryLock() {
				work.Go(func() {
					defer t.unlock()
					s.settle(ctx, t)
				})
				continue
			}
			if !t.writable(s.opt.Now()) || !t.tryLock() {
				continue
			}
			if !t.looks(s.opt.Now(), quietLooks*s.opt.UpkeepEvery) {
				t.unlock()
				continue
			}
			work.Go(func() {
				defer t.unlock()
				s.advance(ctx, t)
			})
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			woken = false
		case <-s.wake:
			woken = true
		}
	}
}

// quietLooks is how many ticks go by until it is looked for something to send that nobody told of.
const quietLooks = 12

// advance sends all that is to be sent to a remote, until the remote fails. A checkpoint that cannot be read here keeps no other one
// from being sent. t is locked.
func (s *Service) advance(ctx context.Context, t *target) {
	a, err := s.apps.Find(accounts.Self(), string(t.record().AppID))
	if err != nil {
		return // it was removed, and may be registered again
	}
	queue, err := s.queue(ctx, a, t)
	if err == nil && len(queue) == 0 && t.idle() {
		return
	}
	if err == nil {
		err = s.apps.EnsureOpen(ctx, a, "push")
	}
	for _, cp := range queue {
		if err != nil || !t.writable(s.opt.Now()) || t.waits(cp.ID, s.opt.Now()) {
			continue
		}
		t.begin(cp.ID)
		var unread error
		if unread, err = s.send(snap.WithProgress(ctx, t.tell), a, t, cp); unread != nil {
			t.noteUnread(cp.ID, unread, s.opt.Now(), s.opt.UpkeepEvery)
			s.opt.Log.Warn("a checkpoint was not sent", "app", a.Rec().Slug, "remote", t.name, "err", unread)
		}
	}
	if ctx.Err() != nil {
		return // the next start goes on
	}
	if e := s.review(t); err == nil {
		err = e
	}
	if err == nil {
		err = s.forgetWanted(ctx, t)
	}
	t.finish(err, s.opt.Now(), s.opt.UpkeepEvery)
	if _, e := s.queue(ctx, a, t); e != nil && err == nil {
		err = e
	}
	if err != nil {
		s.opt.Log.Warn("checkpoints were not sent", "app", a.Rec().Slug, "remote", t.name, "err", err)
	}
	s.noteProblems(a)
}

// noteProblems has the app say what is wrong with its remotes.
func (s *Service) noteProblems(a *app.App) {
	var words []string
	for _, t := range s.of(a.Rec().ID) {
		if w := t.words(); w != "" {
			words = append(words, w)
		}
	}
	app.NoteRemotes(a, words)
}

// reach opens the place of a remote.
func (s *Service) reach(rec store.App, t *target) (*remote.Place, *s3store.Store, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.place != nil {
		return t.place, t.bucket, nil
	}
	u, err := s.useFor(rec, t.rec)
	if err != nil {
		return nil, nil, err
	}
	bucket, err := s.open(t.rec.RemotePlace, u)
	if err != nil {
		return nil, nil, err
	}
	to, err := remote.ParseRecipients(t.rec.Recipients)
	if err != nil {
		return nil, nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, nil, err
	}
	t.bucket = bucket
	t.place = remote.NewPlace(remote.Config{Bucket: bucket, Name: t.rec.Place, Writer: t.rec.Writer, Host: host, Recipients: to, Key: t.rec.LogKey,
		Ledger: s.ledger(rec.ID, t.name), Now: s.opt.Now, Failpoint: s.opt.Failpoint})
	return t.place, t.bucket, nil
}

// review reads the ledger of a remote, to which nobody writes: t is locked.
func (s *Service) review(t *target) error { return s.readLedger(t, true) }

// readLedger notes what the ledger of a remote says. current says that meanwhile no push adds to it.
func (s *Service) readLedger(t *target, current bool) error {
	r := t.record()
	to, err := remote.ParseRecipients(r.Recipients)
	if err != nil {
		return err
	}
	status, err := remote.NewPlace(remote.Config{Name: r.Place, Recipients: to, Ledger: s.ledger(r.AppID, r.Name)}).Status()
	if err == nil {
		t.note(status, r.Recipients, current)
	}
	return err
}

// queue returns the checkpoints that are to be sent and are not on the remote, oldest first.
func (s *Service) queue(ctx context.Context, a *app.App, t *target) ([]store.Checkpoint, error) {
	t.mu.Lock()
	read := t.read
	t.mu.Unlock()
	if !read {
		if err := s.readLedger(t, false); err != nil {
			return nil, err
		}
	}
	cps, err := s.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return nil, err
	}
	slices.Reverse(cps)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.behind = nil
	if t.rec.ReadOnly || t.rec.Clone != nil {
		return nil, nil
	}
	days := map[string]bool{}
	for _, cp := range cps {
		if cp.Damaged != "" {
			continue
		}
		first := !days[day(cp.CreatedAt)] && !t.days[day(cp.CreatedAt)]
		if _, failed := t.unread[cp.ID]; !failed { // else another one of the day goes as well
			days[day(cp.CreatedAt)] = true
		}
		_, due := t.sent[cp.ID] // a checkpoint that was sent and is in doubt is sent again, whoever asked for it then
		due = due || slices.Contains(t.rec.Wanted, cp.ID)
		switch a.Rec().Remoting.Auto {
		case ipc.RemoteAll:
			due = due || !cp.CalledOff // that of a rollback under way is sent when it ended
		case ipc.RemotePinned:
			due = due || cp.Pinned
		case ipc.RemoteDaily:
			due = due || first
		}
		if due && !t.sent[cp.ID] {
			t.behind = append(t.behind, cp)
		}
	}
	maps.DeleteFunc(t.unread, func(id ipc.CheckpointID, _ unread) bool {
		return !slices.ContainsFunc(t.behind, func(cp store.Checkpoint) bool { return cp.ID == id })
	})
	return slices.Clone(t.behind), nil
}

// idle reports whether nobody asked for checkpoints, and the last try did not fail.
func (t *target) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.rec.Wanted) == 0 && t.problem == nil
}

// forgetWanted forgets what somebody asked for, and is sent or gone.
func (s *Service) forgetWanted(ctx context.Context, t *target) error {
	r := t.record()
	if len(r.Wanted) == 0 {
		return nil
	}
	cps, err := s.store.Checkpoints(ctx, r.AppID)
	if err != nil {
		return err
	}
	return s.change(ctx, t, func(r *store.Remote) {
		r.Wanted = slices.DeleteFunc(slices.Clone(r.Wanted), func(id ipc.CheckpointID) bool {
			return t.sent[id] || !slices.ContainsFunc(cps, func(cp store.Checkpoint) bool { return cp.ID == id && cp.Damaged == "" })
		})
	})
}

// change changes the record of a remote, unless that is being removed. f is called with t.mu locked.
func (s *Service) change(ctx context.Context, t *target, f func(*store.Remote)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return t.removing()
	}
	r := t.rec
	f(&r)
	if err := store.PutRemote(ctx, s.store.Store, r); err != nil {
		return err
	}
	t.rec = r
	return nil
}

// send sends one checkpoint. unread says why it cannot be read here, which concerns no other one.
func (s *Service) send(ctx context.Context, a *app.App, t *target, cp store.Checkpoint) (unread, err error) {
	place, _, err := s.reach(a.Rec(), t)
	if err != nil {
		return nil, err
	}
	contents, err := s.store.Contents.OfApp(a.Rec())
	if err != nil {
		return nil, err
	}
	out, more, release, err := s.export(ctx, a, t, cp)
	defer release()
	if err != nil {
		if _, e := s.store.Checkpoint(ctx, a.Rec().ID, cp.ID); errs.KindOf(e) == errs.NotFound {
			return nil, nil // it was deleted meanwhile
		}
		return errs.Wrap(errs.Failed, "push "+string(cp.ID), err), nil
	}
	if err := s.opt.Failpoint.At("push: exported"); err != nil {
		return nil, err
	}
	from := &objects{in: append(more, contents)}
	res, err := place.Push(ctx, from, out)
	switch {
	case err == nil:
		t.noteSent(cp, res.Status)
	case from.unread != nil && errors.Is(err, from.unread):
		return err, nil
	}
	return nil, err
}

// objects are those of a checkpoint: of snapshots that are not in the content store, and in the content store.
type objects struct {
	in     []snap.Contents
	unread error // of the last object that could not be read
}

// Object implements remote.Objects.
func (o *objects) Object(h snap.Hash) (data []byte, refs []snap.Hash, node bool, err error) {
	for _, c := range o.in {
		if data, refs, node, err = c.Object(h); errs.KindOf(err) != errs.NotFound {
			break
		}
	}
	if err != nil {
		o.unread = err
	}
	return data, refs, node, err
}

// export returns a checkpoint as it is sent, and the contents of those of its snapshots that are not in the content store. All of it stays
// until release is called, which is never nil.
func (s *Service) export(ctx context.Context, a *app.App, t *target, cp store.Checkpoint) (out remote.Checkpoint, more []snap.Contents, release func(), err error) {
	var held []func()
	release = func() {
		for _, f := range held {
			f()
		}
	}
	about := aboutText{Checkpoint: cp.Checkpoint}
	out = remote.Checkpoint{ID: string(cp.ID), Made: cp.CreatedAt}
	var parts []remote.Part
	for _, sn := range cp.Snapshots {
		carrier, why := carrierOf(a, sn)
		if why != "" {
			out.Left = append(out.Left, why)
			continue
		}
		p, done, err := carrier.Export(ctx, sn.ID)
		if err != nil {
			return out, nil, release, &layer.Error{Layer: layer.Layer{Name: sn.Layer}, Err: err}
		}
		held = append(held, done)
		if p.Contents != nil {
			more = append(more, p.Contents)
		}
		parts = append(parts, remote.Part{Layer: sn.Layer, Portable: p})
		about.Layers = append(about.Layers, layerText{sn.Layer, sn.Driver, sn.Position, sn.Quiesced})
	}
	for _, l := range a.Layers() {
		if _, ok := cp.Snapshot(l.Name); !ok {
			out.Left = append(out.Left, fmt.Sprintf("The checkpoint itself has nothing of %s.", l.Name))
		}
	}
	out.SetParts(parts)
	if out.About, err = json.Marshal(about); err == nil {
		out.App, err = json.Marshal(appText{a.Rec().App, t.record().RemotePlace, runtime.GOARCH, s.opt.Version})
	}
	return out, more, release, err
}

// carrierOf returns what exports a snapshot, or why nothing does, as a sentence.
func carrierOf(a *app.App, sn store.Snapshot) (snap.Transporter, string) {
	l, ok := a.Layer(sn.Layer)
	if !ok {
		return nil, fmt.Sprintf("%s is not there: the app has this layer no more.", sn.Layer)
	}
	if sn.Raw {
		return nil, fmt.Sprintf("%s is not there: it could not be read when the checkpoint was made, and raw bytes stay on this host.", sn.Layer)
	}
	driver := l.Driver
	if h, ok := driver.(*layer.Held); ok {
		driver = h.Driver // what is stored can be read
	}
	carrier, ok := snap.TransporterOf(driver)
	if ok {
		return carrier, ""
	}
	what := l.About
	switch l.Kind {
	case layer.Disk:
		what = "disks of domains"
	case layer.Volume:
		what = "volumes of containers"
	case layer.Files:
		what = "these files"
	case layer.Database:
		what = "databases that are captured by their server's files (" + l.About + ")"
	}
	return nil, fmt.Sprintf("%s is not there: %s cannot go to remotes yet.", sn.Layer, what)
}

// Push has checkpoints of the app called ref sent to its remotes, whatever is sent by itself.
func (s *Service) Push(ctx context.Context, who ipc.Caller, ref string, req ipc.PushRequest) (ipc.RemoteList, error) {
	const op = "push"
	a, list, err := s.find(who, ref, req.Remote)
	if err != nil {
		return ipc.RemoteList{}, err
	}
	if len(list) == 0 {
		return ipc.RemoteList{}, errs.New(errs.NotFound, op, "%s has no remote", a.Rec().Slug).WithHint("add one: `mulligan remote add`")
	}
	ids, err := s.asked(ctx, a, req.Checkpoints)
	if err != nil {
		return ipc.RemoteList{}, errs.Wrap(errs.Failed, op, err)
	}
	tries := map[*target]int{}
	for _, t := range list {
		if err := s.begin(ctx, who, a, t, ids, req.TakeOver); err != nil {
			return ipc.RemoteList{}, errs.Wrap(errs.Failed, op, err)
		}
		tries[t] = t.hurry()
	}
	s.WakePushes()
	for _, t := range list {
		if !req.Wait {
			break
		}
		if err := s.await(ctx, a, t, tries[t], ids); err != nil {
			return ipc.RemoteList{}, errs.Wrap(errs.Failed, op, err)
		}
	}
	return s.views(ctx, a, list)
}

// asked returns the ids of checkpoints to be sent: those that were asked for, or that of the newest.
func (s *Service) asked(ctx context.Context, a *app.App, ids []ipc.CheckpointID) ([]ipc.CheckpointID, error) {
	for _, id := range ids {
		if _, err := s.store.Checkpoint(ctx, a.Rec().ID, id); err != nil {
			return nil, err
		}
	}
	if len(ids) > 0 {
		return ids, nil
	}
	cps, err := s.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(cps, func(cp store.Checkpoint) bool { return cp.Damaged == "" && !cp.CalledOff })
	if i < 0 {
		return nil, errs.New(errs.NotFound, "", "%s has no checkpoint", a.Rec().Slug).WithHint("make one: `mulligan create`")
	}
	return []ipc.CheckpointID{cps[i].ID}, nil
}

// begin notes what is to be sent to a remote, after taking the place over if that is asked for.
func (s *Service) begin(ctx context.Context, who ipc.Caller, a *app.App, t *target, ids []ipc.CheckpointID, takeOver bool) error {
	if takeOver {
		if err := s.takeOver(ctx, a, t); err != nil {
			return err
		}
		s.events.WriteAudit(ctx, a.Rec(), who, "remote-take-over", t.name, "", nil, nil)
	}
	if err := t.mayWrite(a); err != nil {
		return err
	}
	return s.change(ctx, t, func(r *store.Remote) {
		for _, id := range ids {
			if !t.sent[id] && !slices.Contains(r.Wanted, id) {
				r.Wanted = append(slices.Clip(r.Wanted), id)
			}
		}
	})
}

// takeOver makes this host the one that writes to a remote.
func (s *Service) takeOver(ctx context.Context, a *app.App, t *target) error {
	if err := t.lock(ctx); err != nil {
		return err
	}
	defer t.unlock()
	ctx = context.WithoutCancel(ctx) // what is begun ends, though the client leaves
	place, _, err := s.reach(a.Rec(), t)
	if err == nil {
		err = place.TakeOver(ctx)
	}
	if err == nil {
		err = s.change(ctx, t, func(r *store.Remote) { r.ReadOnly = false })
	}
	if err == nil {
		err = s.review(t)
	}
	if err == nil {
		s.noteProblems(a)
	}
	return err
}

// CheckRemote checks that what this host sent to a remote of the app called ref is there; with full also that it is as it was sent. What is
// not is sent again, with all checkpoints that are still here.
func (s *Service) CheckRemote(ctx context.Context, who ipc.Caller, ref, name string, full bool) (ipc.RemoteCheck, error) {
	const op = "verify the remote"
	res := ipc.RemoteCheck{Remote: name, Problems: []string{}}
	a, list, err := s.find(who, ref, name)
	if err != nil {
		return res, err
	}
	t := list[0]
	if err := t.lock(ctx); err != nil {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	defer t.unlock()
	sent := t.view().Checkpoints
	place, _, err := s.reach(a.Rec(), t)
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	snap.Begin(ctx, "checking what is on "+name)
	found, err := place.Check(ctx, full)
	err = errs.Also(err, s.review(t)) // a check that failed may have noted damage already
	ctx = context.WithoutCancel(ctx)  // what was found now is in the audit trail in any case
	res.Objects, res.OK = found.Objects, err == nil && len(found.Problems) == 0
	res.Problems = append(res.Problems, found.Problems...)
	if len(res.Problems) == 0 {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	s.events.WriteAudit(ctx, a.Rec(), who, "remote-check", name, fmt.Sprintf("%d problems with %d checkpoints", len(res.Problems), sent), err, res)
	s.WakePushes()
	return res, errs.Wrap(errs.Failed, op, err)
}

// await blocks until checkpoints are on a remote, or a try that ended after so many others failed.
func (s *Service) await(ctx context.Context, a *app.App, t *target, tries int, ids []ipc.CheckpointID) error {
	snap.Begin(ctx, "sending to "+t.name)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		at := slices.IndexFunc(ids, func(id ipc.CheckpointID) bool { return !t.has(id) })
		ended, changed, problem := t.since(tries, ids[max(at, 0)])
		switch {
		case at < 0:
			return nil
		case ended && problem != nil:
			return problem
		}
		if _, err := s.store.Checkpoint(ctx, a.Rec().ID, ids[at]); err != nil {
			return err // it was deleted meanwhile
		}
		select {
		case <-changed:
		case <-tick.C:
			if w := t.far(); w.What != "" {
				snap.Tell(ctx, w)
			}
		case <-ctx.Done():
			return errs.Wrap(errs.Unavailable, "", ctx.Err())
		}
	}
}

// lookEvery is the pause between two looks at how far a push is that somebody waits for.
const lookEvery = 200 * time.Millisecond
