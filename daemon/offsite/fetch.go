package offsite

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"filippo.io/age"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/remote"
	"mulligan/remote/identity"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// Fetch brings a checkpoint of the app called ref from a remote to this host, where it can be restored like any other. One that is here is
// returned as it is. The app is held only while what was fetched is recorded.
func (s *Service) Fetch(ctx context.Context, who ipc.Caller, ref string, req ipc.FetchRequest) (ipc.Checkpoint, error) {
	const op = "fetch"
	a, list, err := s.find(who, ref, req.Remote)
	if err != nil {
		return ipc.Checkpoint{}, err
	}
	if cp, err := s.store.Checkpoint(ctx, a.Rec().ID, req.Checkpoint); err == nil {
		return s.shown(cp), nil
	}
	cp, err := s.fetch(ctx, who, a, list, req)
	s.events.WriteAudit(ctx, a.Rec(), who, "fetch", string(req.Checkpoint), "", err, nil)
	if err != nil {
		return ipc.Checkpoint{}, errs.Wrap(errs.Failed, op, err)
	}
	return s.shown(cp), nil
}

// shown returns a checkpoint as clients see it.
func (s *Service) shown(cp store.Checkpoint) ipc.Checkpoint {
	one := []ipc.Checkpoint{checkpoint.Public(cp)}
	s.Locate(one...)
	return one[0]
}

func (s *Service) fetch(ctx context.Context, who ipc.Caller, a *app.App, list []*target, req ipc.FetchRequest) (cp store.Checkpoint, err error) {
	ids, err := identity.Parse(req.Identity)
	if err != nil {
		return cp, err
	}
	if len(list) == 0 {
		return cp, errs.New(errs.NotFound, "", "%s has no remote", a.Rec().Slug).WithHint("add one: `mulligan remote add`")
	}
	hist, from, err := s.look(ctx, a, list, ids, string(req.Checkpoint))
	if err != nil {
		return cp, err
	}
	var about aboutText
	if err := json.Unmarshal(from.About, &about); err != nil {
		return cp, &errs.Error{Kind: errs.Corrupt, Message: "the description of " + from.ID + " on the remote is damaged", Err: err}
	}
	end, err := s.fetchAlone(ctx, a.Rec())
	if err != nil {
		return cp, err
	}
	defer end()
	if old, err := s.store.Checkpoint(ctx, a.Rec().ID, ipc.CheckpointID(from.ID)); err == nil {
		return old, nil // another fetch may have brought it meanwhile
	}
	if err := s.opt.Failpoint.At("fetch: contents"); err != nil {
		return cp, err
	}
	contents, err := s.store.Contents.OfApp(a.Rec())
	if err != nil {
		return cp, err
	}
	held, err := s.download(ctx, a, hist, from, contents)
	if err != nil {
		return cp, err
	}
	defer held.Discard()
	release, err := s.apps.Acquire(ctx, a, "fetch", who)
	if err != nil {
		return cp, err
	}
	defer release()
	ctx = context.WithoutCancel(ctx)
	if cp, err = s.imported(ctx, a, from, about); err != nil {
		return cp, err
	}
	s.naming.Lock()
	defer s.naming.Unlock()
	if cp.ID, err = s.freeID(ctx, from, cp); err != nil {
		return cp, err
	}
	if err := s.opt.Failpoint.At("fetch: record"); err != nil {
		return cp, err
	}
	err = s.checkpoints.Record(ctx, a, &cp, "")
	return cp, err
}

// fetchAlone blocks until no other checkpoint is brought to the app, and keeps others from it until end is called.
func (s *Service) fetchAlone(ctx context.Context, rec store.App) (end func(), err error) {
	one, _ := s.fetching.LoadOrStore(rec.ID, make(chan struct{}, 1))
	fetching := one.(chan struct{})
	end = func() { <-fetching }
	select {
	case fetching <- struct{}{}:
		return end, nil
	default:
		snap.Begin(ctx, "waiting until another fetch for "+rec.Slug+" ends")
	}
	select {
	case fetching <- struct{}{}:
		return end, nil
	case <-ctx.Done():
		return nil, errs.Wrap(errs.Unavailable, "", ctx.Err())
	}
}

// look finds a checkpoint on one of the remotes. What is wrong with one does not keep it from the others.
func (s *Service) look(ctx context.Context, a *app.App, list []*target, ids []age.Identity, at string) (hist *remote.History, from *remote.Logged, err error) {
	var why error
	for _, t := range list {
		_, bucket, err := s.reach(a.Rec(), t)
		if err != nil {
			why = errs.Also(why, err)
			continue
		}
		snap.Begin(ctx, "reading the log of "+t.name)
		hist, err := remote.Reader{Bucket: bucket, Place: t.record().Place, Identities: ids}.Read(ctx)
		if err == nil {
			if from, err = named(hist, at); err == nil {
				return hist, from, nil
			}
		}
		why = errs.Also(why, err)
	}
	return nil, nil, why
}

// download puts the objects of a checkpoint into the content store. The batch that it returns keeps them there.
func (s *Service) download(ctx context.Context, a *app.App, hist *remote.History, from *remote.Logged, contents *cas.Store) (*cas.Batch, error) {
	spool := filepath.Join(s.apps.StateDir(a.Rec().ID), "fetch")
	err := os.RemoveAll(spool) // a crash may have left it
	if err == nil {
		err = os.MkdirAll(spool, 0o700)
	}
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(spool) // the next one removes what this leaves
	for range rereads {
		snap.Begin(ctx, "fetching "+from.ID)
		held, err := hist.Fetch(ctx, &from.Checkpoint, contents, spool)
		if errs.KindOf(err) != errs.Corrupt {
			return held, err
		}
		newer, e := hist.Newer(ctx)
		if newer == nil {
			return nil, errs.Also(err, e)
		}
		switch _, e := newer.Find(from.ID); errs.KindOf(e) {
		case "":
		case errs.NotFound:
			return nil, errs.New(errs.NotFound, "", "%s was removed from the remote while it was fetched", from.ID).WithHint("name another checkpoint")
		default:
			return nil, e
		}
		hist = newer
	}
	return nil, errs.New(errs.Busy, "", "%s was not fetched: what it needs was moved on the remote again and again", from.ID).WithHint("try again when the host that writes there does less")
}

// rereads is how often a log is read again of which what it says is not there: a prune may have moved it.
const rereads = 3

// elsewhere returns the checkpoints of an app that this host sent to remotes and has no more, newest first.
func (s *Service) elsewhere(ctx context.Context, id ipc.AppID) ([]ipc.Checkpoint, error) {
	here, err := s.store.Checkpoints(ctx, id)
	if err != nil {
		return nil, err
	}
	known := map[ipc.CheckpointID]bool{}
	for _, cp := range here {
		known[cp.ID] = true
	}
	var whole, doubtful, gone []ipc.Checkpoint
	for _, t := range s.of(id) {
		w, d := t.described()
		whole, doubtful = append(whole, w...), append(doubtful, d...)
	}
	for _, cp := range append(whole, doubtful...) { // one that is whole on some remote counts as whole
		if !known[cp.ID] {
			known[cp.ID] = true
			cp.Location, cp.SizeBytes = ipc.LocationRemote, 0
			gone = append(gone, cp)
		}
	}
	slices.SortStableFunc(gone, func(a, b ipc.Checkpoint) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return gone, nil
}

// LocateAll sets where the checkpoints of a list are, and adds those that are on remotes alone.
func (s *Service) LocateAll(ctx context.Context, who ipc.Caller, ref string, list *ipc.CheckpointList) error {
	s.Locate(list.Checkpoints...)
	a, remotes, err := s.find(who, ref, "")
	if err != nil || len(remotes) == 0 {
		return err
	}
	if _, err := s.views(ctx, a, remotes); err != nil { // reads the ledgers that were not read yet
		return err
	}
	list.RemoteOnly, err = s.elsewhere(ctx, a.Rec().ID)
	return err
}

// named returns the checkpoint with an id, or with the only id that begins so.
func named(hist *remote.History, at string) (found *remote.Logged, err error) {
	found, err = hist.Find(at)
	if err == nil || len(at) < 4 {
		return found, err
	}
	for i := range hist.Checkpoints {
		cp := &hist.Checkpoints[i]
		switch {
		case !strings.HasPrefix(cp.ID, at):
		case found != nil && found.ID != cp.ID: // what was sent again is there twice
			return nil, errs.New(errs.Conflict, "", "%s and %s both begin with %s", found.ID, cp.ID, at).WithHint("write more of the one that is meant")
		default:
			found, err = cp, nil
		}
	}
	return found, err
}

// imported returns the checkpoint as it is to be recorded here, with the imported snapshots.
func (s *Service) imported(ctx context.Context, a *app.App, from *remote.Logged, about aboutText) (cp store.Checkpoint, err error) {
	was := about.Checkpoint
	cp.AppID, cp.Ref, cp.Trigger, cp.Quiesced = a.Rec().ID, was.Ref, ipc.TriggerManual, was.Quiesced
	cp.Running, cp.Healthy, cp.DeployID, cp.Notes, cp.Pinned = was.Running, was.Healthy, was.DeployID, was.Notes, was.Pinned
	made := fmt.Sprintf("of %s, made %s", from.Host, from.Made.Format("2006-01-02 15:04 UTC")) // here, its time is that at which it is recorded
	if cp.Notes == nil {
		cp.Notes = checkpoint.Optional(from.ID + " " + made)
	} else {
		cp.Notes = checkpoint.Optional(*cp.Notes + " (" + made + ")")
	}
	cp.Warnings = append(slices.Clone(was.Warnings), from.Left...)
	parts, err := from.Snapshots()
	if err != nil {
		return cp, err
	}
	for _, p := range parts {
		if _, ok := a.Layer(p.Layer); !ok {
			cp.Warnings = append(cp.Warnings, fmt.Sprintf("This is not all of %s: the app has no layer %s here.", from.ID, p.Layer))
		}
	}
	ids, announced := checkpoint.Announced(a, a.Layers())
	if err := s.store.PutDisposals(ctx, announced...); err != nil {
		return cp, err
	}
	for i, l := range a.Layers() {
		at := slices.IndexFunc(parts, func(p remote.Part) bool { return p.Layer == l.Name })
		if at < 0 {
			continue
		}
		if err := s.opt.Failpoint.At("import " + string(l.Name)); err != nil {
			return cp, err
		}
		carrier, ok := snap.TransporterOf(l.Driver)
		if !ok {
			return cp, errs.New(errs.Unsupported, "", "%s (%s) cannot be made from a remote here", l.Name, l.About)
		}
		got, err := carrier.Import(ctx, parts[at].Portable, ids[i])
		if err != nil {
			return cp, &layer.Error{Layer: l, Err: err}
		}
		sn := store.Snapshot{Layer: l.Name, ID: got.ID, Driver: got.Driver, Hash: got.Hash, Position: got.Position}
		for _, t := range about.Layers {
			if t.Layer == l.Name {
				sn.Quiesced, sn.Position = t.Quiesced, or(sn.Position, t.Position)
			}
		}
		cp.Warnings = append(cp.Warnings, got.Warnings...)
		cp.Snapshots = append(cp.Snapshots, sn)
	}
	return cp, nil
}
