// Package offsite sends the checkpoints of apps to object stores, and makes apps from what is there (package remote has the formats).
//
// A remote of an app is a record with the place, and a ledger in the app's state folder. What is to be sent follows from the app's
// checkpoints, its setting remote.auto, what somebody asked for (which the record has) and what the ledger says was sent: so a crash
// loses nothing of it. Sending holds no app: the content store keeps what is being sent, and any operation may go on meanwhile.
//
// A clone is registered like any app, gets the fetched snapshots as a checkpoint, and goes to it by a rollback. The remote's record is
// written first and says that the app is being made, until it is; after a crash, an app that is not made is dropped,
// unless somebody has made checkpoints of it since.
package offsite

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/records"
	"mulligan/daemon/registry"
	"mulligan/daemon/rollback"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/remote"
	"mulligan/snap"
)

// Service sends checkpoints to remotes and clones apps from them. Safe for concurrent use.
type Service struct {
	opt         *settings.Options
	store       *records.Records
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	rollbacks   *rollback.Service
	registry    *registry.Service

	wake   chan struct{}
	naming sync.Mutex // checkpoints from remotes get their ids one after the other

	fetching sync.Map // by the id of an app that there is: a chan struct{} with room for one, which is full while a checkpoint is brought to the app

	mu      sync.Mutex
	targets map[string]*target // by app and name
}

// New returns the service of a daemon's remotes.
func New(opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set,
	cps *checkpoint.Service, rollbacks *rollback.Service, reg *registry.Service,
) *Service {
	s := &Service{opt: opt, store: store, events: ev, apps: apps, checkpoints: cps, rollbacks: rollbacks, registry: reg,
		wake: make(chan struct{}, 1), targets: map[string]*target{}}
	cps.Recorded, reg.Purged = s.WakePushes, s.forgetPurged
	return s
}

// LoadRemotes reads the remotes' records. It must be called before all others.
func (s *Service) LoadRemotes(ctx context.Context) error {
	list, err := store.Remotes(ctx, s.store.Store)
	for _, r := range list {
		t := newTarget(r)
		t.cut = r.Clone != nil
		s.targets[key(r.AppID, r.Name)] = t
	}
	return err
}

// WakePushes has the remotes looked at soon.
func (s *Service) WakePushes() {
	select {
	case s.wake <- struct{}{}:
	default: // they will be
	}
}

func key(id ipc.AppID, name string) string { return string(id) + "/" + name }

// of returns the remotes of an app, by name.
func (s *Service) of(id ipc.AppID) (list []*target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, t := range s.targets {
		if strings.HasPrefix(k, string(id)+"/") {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b *target) int { return strings.Compare(a.name, b.name) })
	return list
}

// find returns the app called ref, and its remote of that name, or all if name is "".
func (s *Service) find(who ipc.Caller, ref, name string) (*app.App, []*target, error) {
	a, err := s.apps.Find(who, ref)
	if err != nil {
		return nil, nil, err
	}
	list := s.of(a.Rec().ID)
	if name == "" {
		return a, list, nil
	}
	i := slices.IndexFunc(list, func(t *target) bool { return t.name == name })
	if i < 0 {
		return nil, nil, errs.New(errs.NotFound, "", "%s has no remote %.64q", a.Rec().Slug, name).WithHint("`mulligan remote list` shows its remotes")
	}
	return a, list[i : i+1], nil
}

var nameSyntax = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

func (s *Service) ledger(id ipc.AppID, name string) string {
	return filepath.Join(s.apps.StateDir(id), "remote-"+name+".ledger")
}

// Remotes lists the remotes of the app called ref.
func (s *Service) Remotes(ctx context.Context, who ipc.Caller, ref string) (ipc.RemoteList, error) {
	a, list, err := s.find(who, ref, "")
	if err != nil {
		return ipc.RemoteList{}, err
	}
	return s.views(ctx, a, list)
}

func (s *Service) views(ctx context.Context, a *app.App, list []*target) (ipc.RemoteList, error) {
	res := ipc.RemoteList{Remotes: []ipc.Remote{}}
	for _, t := range list {
		if _, err := s.queue(ctx, a, t); err != nil {
			return res, err
		}
		res.Remotes = append(res.Remotes, t.view())
	}
	return res, nil
}

// Remote returns one remote of the app called ref.
func (s *Service) Remote(ctx context.Context, who ipc.Caller, ref, name string) (ipc.Remote, error) {
	a, list, err := s.find(who, ref, name)
	if err != nil {
		return ipc.Remote{}, err
	}
	res, err := s.views(ctx, a, list)
	if err != nil {
		return ipc.Remote{}, err
	}
	return res.Remotes[0], nil
}

// AddRemote adds a remote to the app called ref, after checking what its key can do there. A remote of the same name and URL gets the new key
// and the new recipients, and stays in its place.
func (s *Service) AddRemote(ctx context.Context, who ipc.Caller, ref string, req ipc.RemoteRequest) (ipc.Remote, error) {
	const op = "add a remote"
	a, err := s.apps.Find(who, ref)
	if err != nil {
		return ipc.Remote{}, err
	}
	t, err := s.add(ctx, who, a, req)
	if err != nil {
		return ipc.Remote{}, errs.Wrap(errs.Failed, op, err)
	}
	s.events.WriteAudit(ctx, a.Rec(), who, "remote-add", req.Name, "", nil, t.view().RemotePlace)
	s.WakePushes()
	res, err := s.views(ctx, a, []*target{t})
	if err != nil {
		return ipc.Remote{}, err
	}
	return res.Remotes[0], nil
}

func (s *Service) add(ctx context.Context, who ipc.Caller, a *app.App, req ipc.RemoteRequest) (*target, error) {
	rec := a.Rec()
	keys, err := keysOf(req.BucketKeys)
	if err == nil {
		err = checkCaller(who, &rec)
	}
	if err == nil {
		_, err = remote.ParseRecipients(req.Recipients)
	}
	switch {
	case err != nil:
		return nil, err
	case !nameSyntax.MatchString(req.Name):
		return nil, errs.New(errs.Invalid, "", "%.64q cannot be the name of a remote", req.Name).WithHint("use at most 32 of a to z, 0 to 9 and -, beginning with a letter or digit")
	case rec.Fork != nil:
		return nil, errs.New(errs.Unsupported, "", "%s is a fork, and forks have no remotes", rec.Slug).WithHint("add the remote to its parent")
	}
	r := store.Remote{AppID: rec.ID, RemotePlace: req.RemotePlace, Place: remote.NewName(), Writer: remote.NewName(), LogKey: remote.NewKey(), Added: s.opt.Now().UTC()}
	s.mu.Lock()
	old := s.targets[key(rec.ID, req.Name)]
	s.mu.Unlock()
	if old != nil {
		was := old.record()
		if was.URL != req.URL || was.Endpoint != req.Endpoint {
			return nil, errs.New(errs.Conflict, "", "%s has a remote %s at another place: %s", rec.Slug, req.Name, was.URL).
				WithHint("choose another name, or remove that one first: `mulligan remote remove %s`", req.Name)
		}
		r.Place, r.Writer, r.LogKey, r.Added = was.Place, was.Writer, was.LogKey, was.Added
	}
	r.Keys, r.ByRoot = keys, !s.opt.User && s.apps.Administers(who)
	u := s.useBy(who, keys)
	u.soon = true
	bucket, err := s.open(r.RemotePlace, u)
	if err != nil {
		return nil, err
	}
	snap.Begin(ctx, "checking what the key can do there")
	found, err := remote.Probe(ctx, bucket, r.Place)
	if errs.KindOf(err) == errs.Unavailable {
		return nil, &errs.Error{Kind: errs.Unavailable, Err: err, Hint: "check --endpoint, and that this host reaches it"}
	}
	if err != nil {
		return nil, err
	}
	r.Abilities = abilities(found)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets[key(rec.ID, r.Name)] != old {
		return nil, errs.New(errs.Busy, "", "somebody else has just added or removed the remote %s", r.Name).WithHint("look at it: `mulligan remote show %s`", r.Name)
	}
	if old != nil {
		err := s.change(ctx, old, func(was *store.Remote) {
			r.Wanted, r.ReadOnly, r.Clone = was.Wanted, was.ReadOnly, was.Clone // these may have changed while the key was checked
			*was = r
		})
		if err == nil {
			old.reopen()
		}
		return old, err
	}
	if err := store.PutRemote(ctx, s.store.Store, r); err != nil {
		return nil, err
	}
	t := newTarget(r)
	s.targets[key(rec.ID, r.Name)] = t
	return t, nil
}

// abilities says what was found of a key.
func abilities(f remote.Found) ipc.Abilities {
	a := ipc.Abilities{Delete: f.Delete, Lock: f.Lock, Notes: []string{"The key can write, read and list, and the server overwrites nothing."}}
	switch {
	case f.Lock:
		a.Notes = append(a.Notes, "The bucket locks objects: what was sent cannot be deleted until its time is over.")
	case f.Delete:
		a.Notes = append(a.Notes, "The key can delete: whoever takes this host over can delete what was sent. A key that may not delete, or object lock, prevents that.")
	default:
		a.Notes = append(a.Notes, "The key cannot delete: whoever takes this host over cannot delete what was sent. Nor can this host make room there.")
	}
	return a
}

// RemoveRemote forgets a remote of the app called ref. What was sent stays there.
func (s *Service) RemoveRemote(ctx context.Context, who ipc.Caller, ref, name string) error {
	const op = "remove a remote"
	a, list, err := s.find(who, ref, name)
	if err != nil {
		return err
	}
	t := list[0]
	if t.record().Clone != nil {
		return errs.New(errs.Busy, op, "%s is being made from this remote", a.Rec().Slug).WithHint("wait for the clone to end")
	}
	ctx = context.WithoutCancel(ctx) // a client that leaves must not keep a remote that sends nothing any more
	if err := t.end(); err != nil {  // waits until nothing is sent
		return errs.Wrap(errs.Failed, op, err)
	}
	if err := store.DeleteRemote(ctx, s.store.Store, a.Rec().ID, name); err != nil {
		t.stay()
		return errs.Wrap(errs.Failed, op, err)
	}
	err = os.Remove(s.ledger(a.Rec().ID, name)) // as long as no other remote can have that name
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	s.mu.Lock()
	delete(s.targets, key(a.Rec().ID, name))
	s.mu.Unlock()
	s.noteProblems(a)
	s.events.WriteAudit(ctx, a.Rec(), who, "remote-remove", name, "", nil, nil)
	return errs.Wrap(errs.Failed, op, err)
}

// forgetPurged forgets the remotes of an app that was purged, whose records are deleted. It does not wait for what is being sent; nothing else is sent
// after that. A remote from which the app was still being made is forgotten when the clone is settled.
func (s *Service) forgetPurged(id ipc.AppID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, t := range s.targets {
		t.mu.Lock()
		if t.rec.AppID == id && t.rec.Clone == nil {
			t.gone = true
			delete(s.targets, k)
		}
		t.mu.Unlock()
	}
}

// Lag is how far the daemon's remotes are behind.
type Lag struct {
	Remotes, Failing, Checkpoints int
	Since                         time.Time // when the oldest of these checkpoints was made; zero: there is none
}

// Lag returns how far all remotes are behind, as far as was looked.
func (s *Service) Lag() (l Lag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.targets {
		v := t.view()
		l.Remotes++
		l.Checkpoints += v.Behind
		if v.Problem != "" {
			l.Failing++
		}
		if v.BehindSince != nil && (l.Since.IsZero() || v.BehindSince.Before(l.Since)) {
			l.Since = *v.BehindSince
		}
	}
	return l
}

// Locate sets where checkpoints of one app are.
func (s *Service) Locate(cps ...ipc.Checkpoint) {
	if len(cps) == 0 {
		return
	}
	list := s.of(cps[0].AppID)
	if len(list) == 0 {
		return
	}
	for i := range cps {
		cps[i].Location = ipc.LocationHere
		if slices.ContainsFunc(list, func(t *target) bool { return t.has(cps[i].ID) }) {
			cps[i].Location = ipc.LocationBoth
		}
	}
}
