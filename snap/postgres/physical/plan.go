package physical

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/snap"
)

// phase is how far a restore got.
type phase string

const (
	prepared   phase = "prepared"   // the live folder was not touched
	committing phase = "committing" // the server may be down, the folders may have changed places
	committed  phase = "committed"  // the fork is live
	undoing    phase = "undoing"
	undone     phase = "undone"
)

// plan is the durable record of a restore. Which folder is live is not in it:
// the folders' inodes tell, also after a crash between the exchange and a record.
type plan struct {
	ID     snap.RestoreID  `json:"id"`
	Target snap.SnapshotID `json:"target"`
	Base   snap.SnapshotID `json:"base"`
	Phase  phase           `json:"phase"`
	System string          `json:"system"`
	Live   uint64          `json:"live"` // inode of the data folder that is the base
	Fork   fork            `json:"fork"`
	Kept   bool            `json:"kept"`          // the fork is the folder that was swapped out at Target
	Digest snap.Hash       `json:"digest"`        // of the fork's contents; zero where they were not asked for
	Rows   bool            `json:"rows"`          // the digest is over every row
	From   place           `json:"from,omitzero"` // of the base's marker
	// The base and the target, where they were kept raw; From and Digest are nothing then.
	RawBase   *raw      `json:"raw_base"`
	RawTarget *raw      `json:"raw_target"`
	Read      snap.Hash `json:"read"` // of raw files that became live, before a server was started in them

	Changes []snap.Change `json:"changes"`
	Total   int           `json:"total"`
}

// maxChanges is how many changes a plan lists.
const maxChanges = 1000

func (p *plan) setChanges(target, base state, differ []snap.Change) {
	summary := fmt.Sprintf("from %s to %s", base, target)
	p.Changes = append([]snap.Change{{Path: "cluster", Operation: snap.Modify, Summary: summary}}, differ...)
	p.Total = len(p.Changes)
	p.Changes = p.Changes[:min(len(p.Changes), maxChanges)]
}

func (d *Driver) loadPlan(op string, id snap.RestoreID) (*plan, error) {
	var p plan
	err := d.get("switches", string(id), &p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(errs.NotFound, op, "no restore %s of cluster %s is under way", id, d.cfg.Name)
	}
	return &p, err
}

// advance records a phase.
func (d *Driver) advance(p *plan, to phase) error {
	if err := d.cfg.Failpoint.At("plan: " + string(to)); err != nil {
		return err
	}
	p.Phase = to
	return d.put("switches", string(p.ID), p)
}

// exchanged reports whether the fork is where the server looks for its data.
func (d *Driver) exchanged(p *plan) (bool, error) {
	n, err := inode(d.cfg.DataDir)
	switch {
	case err != nil:
		return false, err
	case n == p.Fork.Inode:
		return true, nil
	case n == p.Live:
		return false, nil
	}
	// Somebody removed or replaced what is live; the other one tells which that was.
	switch n, err := inode(d.stored("forks", p.Fork.Dir)); {
	case err != nil:
		return false, err
	case n != 0 && n == p.Live:
		return true, nil
	case n != 0 && n == p.Fork.Inode:
		return false, nil
	}
	return false, errs.New(errs.Conflict, "", "the data folder %s is neither the one from before the restore nor the restored one", d.cfg.DataDir).
		WithHint("somebody else replaced it; put it back")
}

// stateHash stands for a state by where in the history it is: the cluster, the
// timeline, which the server gives to one fork only, and the place in the log up
// to which nothing was changed; and by its contents, where they were read.
func stateHash(system string, t timeline, at lsn, digest snap.Hash) snap.Hash {
	h := blake3.New()
	_, _ = fmt.Fprintf(h, "mulligan postgres state 1\n%s\n", system) // never fails
	_, _ = h.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, uint32(t)), uint64(at)))
	_, _ = h.Write(digest[:])
	return snap.Hash(h.Sum(nil))
}

func (p *plan) baseHash() snap.Hash {
	if p.RawBase != nil {
		return p.RawBase.Hash
	}
	return stateHash(p.System, p.From.TLI, p.From.Start, snap.Hash{})
}

func (p *plan) targetHash() snap.Hash {
	if p.RawTarget != nil {
		return p.RawTarget.Hash
	}
	return stateHash(p.System, p.Fork.End.TLI, p.Fork.End.Checkpoint, p.Digest)
}

// Prepare makes a fork of the target, or takes the folder that was swapped out
// at it. The live server runs on.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	const op = "prepare to restore cluster"
	d.mu.Lock()
	defer d.mu.Unlock()
	if !validName(string(req.ID)) {
		return nil, errs.New(errs.Invalid, op, "%q is not the id of a restore", req.ID)
	}
	if err := ctx.Err(); err != nil {
		return nil, errs.Wrap(errs.Unavailable, op, err)
	}
	p, err := d.prepare(ctx, req)
	if err != nil {
		return nil, d.classify(op, err)
	}
	return &dbSwitch{d, p.ID, p.Changes, p.Total}, nil
}

func (d *Driver) prepare(ctx context.Context, req snap.RestoreRequest) (*plan, error) {
	target, err := d.state(req.Target)
	if err != nil {
		return nil, err
	}
	base, err := d.state(req.Base)
	if err != nil {
		return nil, err
	}
	old, err := d.loadPlan("", req.ID)
	if errs.KindOf(err) == errs.NotFound {
		old, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	if old != nil && old.Phase != prepared {
		return nil, errs.New(errs.Conflict, "", "restore %s is %s already", req.ID, old.Phase).WithHint("finish it first")
	}
	f, err := d.survivor(ctx, base)
	if err != nil {
		return nil, err
	}
	p := &plan{ID: req.ID, Target: req.Target, Base: req.Base, Phase: prepared, System: f.System, From: base.place, RawBase: base.raw, RawTarget: target.raw}
	if p.Live, err = inode(d.cfg.DataDir); err != nil {
		return nil, err
	}
	if err := d.fill(ctx, p, old, target, base, f); err != nil {
		return nil, err
	}
	if err := d.advance(p, prepared); err != nil {
		return nil, err
	}
	if old != nil && old.Fork.Dir != p.Fork.Dir && !old.Kept {
		return p, d.remove(ctx, d.stored("forks", old.Fork.Dir))
	}
	return p, nil
}

// survivor checks that a restore can begin with base, and says what the fork has to
// know of the server: as it says itself, or as it was recorded before it broke.
func (d *Driver) survivor(ctx context.Context, base state) (f facts, err error) {
	if base.raw != nil {
		return d.known()
	}
	c, err := d.connect(ctx)
	if errs.KindOf(err) == errs.Unavailable {
		if err = d.revive(ctx, true, err); err == nil {
			c, err = d.connect(ctx)
		}
	}
	if err != nil {
		return f, err
	}
	defer c.close()
	if f, err = d.inspect(ctx, c); err != nil {
		return f, err
	}
	if err := d.refuse(ctx, f); err != nil {
		return f, err
	}
	if f.TLI != base.TLI {
		return f, snap.Changed("", "cluster "+d.cfg.Name)
	}
	return f, d.collect(ctx, c, f) // so that little is left to be done while the server is down
}

// fill gives the plan a fork: the one of the last preparation, the folder that
// was kept, or a new one.
func (d *Driver) fill(ctx context.Context, p *plan, old *plan, target, base state, f facts) (err error) {
	if target.raw != nil {
		p.setChanges(target, base, nil)
		p.Fork, err = d.rawFork(ctx, *target.raw)
		return err
	}
	if old != nil && old.Target == p.Target {
		if now, err := d.readControl(ctx, d.stored("forks", old.Fork.Dir)); err == nil && now.same(old.Fork.End) {
			p.Fork, p.Kept, p.Digest, p.Rows = old.Fork, old.Kept, old.Digest, old.Rows
			p.setChanges(target, base, old.Changes[1:])
			return nil
		}
	}
	fk, found, err := d.keptFork(ctx, target.ID)
	if err != nil {
		return err
	}
	if found {
		p.Fork, p.Kept = fk, true
		p.setChanges(target, base, nil)
		return nil
	}
	if p.Fork, err = d.build(ctx, target.marker, f); err != nil {
		return err
	}
	p.Digest, p.Rows = p.Fork.Contents.digest(), p.Fork.Contents.Rows
	if base.raw != nil {
		p.setChanges(target, base, nil)
		return nil
	}
	limit := int64(-1)
	if p.Rows {
		limit = d.cfg.DigestLimit
	}
	now, err := readContents(ctx, d.connectTo, limit)
	if err != nil {
		return errs.Also(err, d.remove(ctx, d.stored("forks", p.Fork.Dir)))
	}
	p.setChanges(target, base, differences(p.Fork.Contents, now))
	return nil
}

// Resume returns the switch that an earlier process prepared.
func (d *Driver) Resume(_ context.Context, id snap.RestoreID) (snap.Switch, error) {
	const op = "resume the restore of cluster"
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.loadPlan(op, id)
	if err != nil {
		return nil, d.classify(op, err)
	}
	return &dbSwitch{d, p.ID, p.Changes, p.Total}, nil
}
