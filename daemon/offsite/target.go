package offsite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/remote"
	"mulligan/remote/s3store"
	"mulligan/snap"
)

// target is a remote at run time. Safe for concurrent use.
type target struct {
	name string
	busy chan struct{} // has room for one, and is full while something is sent, checked, pruned or taken over

	mu      sync.Mutex
	rec     store.Remote
	gone    bool // it was removed, or is being removed
	cut     bool // the clone that its app was made by was cut short, and is to be settled
	bucket  *s3store.Store
	place   *remote.Place // nil: it is not open
	read    bool          // the ledger was read, and status, sent and days are what it says
	status  remote.Status
	sent    map[ipc.CheckpointID]bool // false: it is in doubt, and to be sent again
	days    map[string]bool           // days of which a checkpoint was sent
	behind  []store.Checkpoint
	unread  map[ipc.CheckpointID]unread // those of behind that could not be read when they were to be sent
	sending ipc.CheckpointID
	work    snap.Work // how far sending it is

	tries    int // that ended
	failures int // in a row
	problem  error
	next     time.Time     // the next try is not before
	hinted   bool          // there may be something new to send
	quiet    time.Time     // until when nothing is looked for without a hint
	changed  chan struct{} // closed when a try ends
}

// unread is a checkpoint that could not be read here.
type unread struct {
	err    error
	try    int       // so many tries had ended
	failed int       // so often in a row
	next   time.Time // it is not tried before
}

func newTarget(r store.Remote) *target {
	return &target{name: r.Name, busy: make(chan struct{}, 1), rec: r, hinted: true, changed: make(chan struct{}), unread: map[ipc.CheckpointID]unread{}}
}

func (t *target) record() store.Remote {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec
}

// reopen has the next try open the bucket anew, with the keys and for the recipients that the record has now, and begin without a pause. What the ledger says
// is read again: a new recipient cannot read what was sent.
func (t *target) reopen() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.place, t.bucket, t.next, t.failures, t.problem, t.read = nil, nil, time.Time{}, 0, nil, false
}

// lock blocks until nobody else works on the remote, no longer than ctx lasts, and keeps others from it until unlock is called.
func (t *target) lock(ctx context.Context) error {
	if !t.tryLock() {
		snap.Begin(ctx, "waiting until nothing else is done with the remote "+t.name)
		select {
		case t.busy <- struct{}{}:
		case <-ctx.Done():
			return errs.Wrap(errs.Unavailable, "", ctx.Err())
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone { // its ledger's file may be another remote's
		t.unlock()
		return t.removing()
	}
	return nil
}

func (t *target) tryLock() bool {
	select {
	case t.busy <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t *target) unlock() { <-t.busy }

// removing is the error of what is not done with a remote that is being removed.
func (t *target) removing() error {
	return errs.New(errs.Busy, "", "the remote %s is being removed", t.name).WithHint("`mulligan remote list` shows whether it still is there")
}

// end marks the remote as removed, and waits until nothing is sent to it. It returns an error if the remote is being removed already.
func (t *target) end() error {
	t.mu.Lock()
	gone := t.gone
	t.gone = true
	t.mu.Unlock()
	if gone {
		return t.removing()
	}
	t.busy <- struct{}{}
	t.unlock()
	return nil
}

// stay takes back the mark of end: the remote could not be removed, and goes on sending.
func (t *target) stay() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = false
}

func (t *target) has(id ipc.CheckpointID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sent[id]
}

// described returns what the ledger says of the checkpoints that were sent. Those that are in doubt say so.
func (t *target) described() (whole, doubtful []ipc.Checkpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range slices.Concat(t.status.Sent, t.status.Doubtful) {
		var about aboutText
		if json.Unmarshal(c.About, &about) != nil || string(about.Checkpoint.ID) != c.ID {
			continue
		}
		cp := about.Checkpoint
		if !c.Doubt {
			whole = append(whole, cp)
			continue
		}
		cp.Warnings = append(cp.Warnings, fmt.Sprintf(
			"This checkpoint may be damaged or missing on the remote %s, or not readable for all recipients: it was sent before that was found or a recipient was added, and not again.", t.name))
		doubtful = append(doubtful, cp)
	}
	return whole, doubtful
}

// note takes over what the ledger says of what was sent to recipients. Unless current says that nothing was added since it was read, what is known already
// is newer.
func (t *target) note(s remote.Status, to []string, current bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.read && !current || !slices.Equal(to, t.rec.Recipients) { // after the recipients changed it is read again
		return
	}
	t.read, t.status, t.sent, t.days = true, s, map[ipc.CheckpointID]bool{}, map[string]bool{}
	for _, c := range s.Doubtful {
		t.sent[ipc.CheckpointID(c.ID)] = false
	}
	for _, c := range s.Sent {
		t.sent[ipc.CheckpointID(c.ID)] = true
		var about aboutText
		if json.Unmarshal(c.About, &about) == nil {
			t.days[day(about.Checkpoint.CreatedAt)] = true
		}
	}
}

// noteSent notes that a checkpoint was sent, and what the ledger says since.
func (t *target) noteSent(cp store.Checkpoint, s remote.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status, t.sent[cp.ID], t.days[day(cp.CreatedAt)] = s, true, true
	t.behind = slices.DeleteFunc(t.behind, func(c store.Checkpoint) bool { return c.ID == cp.ID })
	delete(t.unread, cp.ID)
	t.sending, t.work, t.problem = "", snap.Work{}, nil
	t.tellWaiters()
}

func day(at time.Time) string { return at.UTC().Format(time.DateOnly) }

// begin marks a checkpoint as being sent.
func (t *target) begin(id ipc.CheckpointID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sending, t.work = id, snap.Work{}
}

// waits reports whether a checkpoint that could not be read is not to be tried yet.
func (t *target) waits(id ipc.CheckpointID, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Before(t.unread[id].next)
}

// noteUnread notes that a checkpoint could not be read. It is tried again later, each time after a longer pause.
func (t *target) noteUnread(id ipc.CheckpointID, err error, now time.Time, pause time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	failed := t.unread[id].failed
	t.unread[id] = unread{err: err, try: t.tries, failed: failed + 1, next: now.Add(pauseAfter(pause, failed))}
	t.sending, t.work = "", snap.Work{}
	t.tellWaiters()
}

// tell notes how far the sending of a checkpoint is.
func (t *target) tell(w snap.Work) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.What += " to " + t.name
	t.work = w
}

// far returns how far the sending of a checkpoint is; nothing if none is being sent.
func (t *target) far() snap.Work {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.work
}

// finish ends a try. After a failure the next one waits, longer each time, and for good if another host has the place.
func (t *target) finish(err error, now time.Time, pause time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sending, t.work, t.problem = "", snap.Work{}, err
	t.tries++
	if err == nil {
		t.failures, t.next = 0, time.Time{}
	} else {
		t.next = now.Add(pauseAfter(pause, t.failures))
		t.failures++
	}
	t.tellWaiters()
}

// tellWaiters wakes those who wait for a checkpoint to be sent. t.mu is locked.
func (t *target) tellWaiters() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// maxPause is the longest pause between two tries.
const maxPause = 10 * time.Minute

// pauseAfter returns the pause until the next try after so many failures before the last one. first is that after the first.
func pauseAfter(first time.Duration, failures int) time.Duration {
	return min(first<<min(failures, 20), maxPause)
}

// hint says that there may be something new to send.
func (t *target) hint() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hinted = true
}

// looks marks that it is being looked whether there is something to send, and reports whether that is due. Looking reads the records of all
// checkpoints, so it is not done again and again without a reason.
func (t *target) looks(now time.Time, pause time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.hinted && t.problem == nil && now.Before(t.quiet) {
		return false
	}
	t.hinted, t.quiet = false, now.Add(pause)
	return true
}

// writable reports whether something may be sent now.
func (t *target) writable(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.gone && !t.rec.ReadOnly && t.rec.Clone == nil && t.status.Lost == nil && !now.Before(t.next)
}

// cutShort reports whether a clone is to be settled now.
func (t *target) cutShort(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cut && !t.gone && !now.Before(t.next)
}

// noteCut notes whether a clone is still to be settled, and why it could not be.
func (t *target) noteCut(err error, now time.Time, pause time.Duration) {
	t.finish(err, now, pause)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cut = err != nil
}

// hurry has the next try begin without a pause, with all checkpoints, and returns how many tries have ended.
func (t *target) hurry() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = time.Time{}
	for id, u := range t.unread {
		u.next = time.Time{}
		t.unread[id] = u
	}
	return t.tries
}

// since returns how tries went after so many: whether one ended for the checkpoint id, with which error, and what is closed when the next
// one ends or a checkpoint is sent.
func (t *target) since(tries int, id ipc.CheckpointID) (ended bool, changed <-chan struct{}, problem error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return true, t.changed, t.removing()
	}
	if u, ok := t.unread[id]; ok && u.try >= tries {
		return true, t.changed, u.err
	}
	return t.tries > tries, t.changed, t.problem
}

// trouble returns what is wrong, with the remote or else with the oldest checkpoint that could not be read, and when that is tried again.
// t.mu is locked.
func (t *target) trouble() (next time.Time, problem error) {
	if t.problem != nil {
		return t.next, t.problem
	}
	for _, cp := range t.behind {
		if u, ok := t.unread[cp.ID]; ok {
			return u.next, u.err
		}
	}
	return time.Time{}, nil
}

// words say what is wrong with the remote; "" is nothing.
func (t *target) words() string {
	v := t.view()
	t.mu.Lock()
	cut := t.cut
	t.mu.Unlock()
	switch {
	case cut && v.Problem != "":
		return fmt.Sprintf("The clone that was to make this app was cut short, and what is left of it could not be settled, which is tried again at %s: %s", v.NextTry.Format("15:04:05 UTC"), v.Problem)
	case v.State == ipc.RemoteLost:
		return fmt.Sprintf("The remote %s gets no checkpoints any more: %s", t.name, v.Problem)
	case v.State != ipc.RemoteFailing:
		return ""
	case v.BehindSince == nil:
		return fmt.Sprintf("The remote %s cannot be written to, which is tried again at %s: %s", t.name, v.NextTry.Format("15:04:05 UTC"), v.Problem)
	}
	return fmt.Sprintf("The remote %s lacks %d checkpoints, the oldest of %s; they are tried again at %s: %s",
		t.name, v.Behind, v.BehindSince.Format("2006-01-02 15:04 UTC"), v.NextTry.Format("15:04:05 UTC"), v.Problem)
}

// view returns the remote as clients see it.
func (t *target) view() ipc.Remote {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := ipc.Remote{RemotePlace: t.rec.RemotePlace, AppID: t.rec.AppID, Keys: ipc.KeysDaemon, Abilities: t.rec.Abilities, AddedAt: t.rec.Added, LogKey: remote.KeyName(t.rec.LogKey),
		State: ipc.RemoteIdle, Checkpoints: len(t.status.Sent), Behind: len(t.behind), Packs: t.status.Packs, StoredBytes: t.status.Bytes}
	if t.rec.Keys != nil {
		v.Keys = ipc.KeysOwn
	}
	if n := len(t.behind); n > 0 {
		v.BehindSince = &t.behind[0].CreatedAt
	}
	if n := len(t.status.Sent); n > 0 {
		last := t.status.Sent[n-1]
		v.UpTo, v.Left = ipc.CheckpointID(last.ID), slices.Clone(last.Left)
		var about aboutText
		if json.Unmarshal(last.About, &about) == nil {
			v.UpToMade = &about.Checkpoint.CreatedAt
		}
	}
	if t.bucket != nil {
		u := t.bucket.Usage()
		v.Requests, v.SentBytes = u.Requests, u.Sent
	}
	next, problem := t.trouble()
	if problem != nil {
		v.Problem = errs.Words(problem)
	}
	switch {
	case t.rec.ReadOnly && !(t.cut && problem != nil):
		v.State = ipc.RemoteReadOnly
	case t.status.Lost != nil:
		v.State, v.Problem = ipc.RemoteLost, errs.Words(t.status.Lost.Err())
	case t.sending != "":
		v.State = ipc.RemoteSending
	case problem != nil:
		next = next.UTC()
		v.State, v.NextTry = ipc.RemoteFailing, &next
	}
	return v
}
