package physical

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/wal"
)

// plan is the durable record of a restore. Which folder is live is not in it:
// the folders' inodes tell, also after a crash between the exchange and a record.
type plan struct {
	database.Plan
	System string    `json:"system"`
	Live   uint64    `json:"live"` // inode of the data folder that is the base
	Fork   fork      `json:"fork"`
	Kept   bool      `json:"kept"`          // the fork is the folder that was swapped out at Target
	Digest snap.Hash `json:"digest"`        // of the fork's contents; zero where they were not asked for
	Rows   bool      `json:"rows"`          // the digest is over every row
	From   place     `json:"from,omitzero"` // of the base's marker
	// The base and the target, where they were kept raw; From and Digest are nothing then.
	RawBase   *raw      `json:"raw_base"`
	RawTarget *raw      `json:"raw_target"`
	Read      snap.Hash `json:"read"` // of raw files that became live, before a server was started in them

	facts  facts // what Build has to know of the server
	reuses bool  // the fork was there before this preparation
	up     bool  // the server was started after the exchange, or that was tried
}

// maxChanges is how many changes a plan lists.
const maxChanges = 1000

func (p *plan) setChanges(target, base state, differ []snap.Change) {
	summary := fmt.Sprintf("from %s to %s", base, target)
	p.Changes = append([]snap.Change{{Path: "cluster", Operation: snap.Modify, Summary: summary}}, differ...)
	p.Total = len(p.Changes)
	p.Changes = p.Changes[:min(len(p.Changes), maxChanges)]
}

// exchanged reports whether the fork is where the server looks for its data.
func (d *Driver) exchanged(p *plan) (bool, error) {
	n, err := asowner.Inode(d.cfg.DataDir)
	switch {
	case err != nil:
		return false, err
	case n == p.Fork.Inode:
		return true, nil
	case n == p.Live:
		return false, nil
	}
	// Somebody removed or replaced what is live; the other one tells which that was.
	switch n, err := asowner.Inode(d.stored("forks", p.Fork.Dir)); {
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
func stateHash(system string, t wal.Timeline, at wal.LSN, digest snap.Hash) snap.Hash {
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

// Plan finds the two ends, and the fork: the one of the last preparation, the folder that was
// kept at the target, or the name of a new one.
func (e engine) Plan(ctx context.Context, p, old *plan, target, base state) error {
	f, err := e.d.survivor(ctx, base)
	if err != nil {
		return err
	}
	p.facts, p.System, p.From, p.RawBase, p.RawTarget = f, f.System, base.place, base.raw, target.raw
	if p.Live, err = asowner.Inode(e.d.cfg.DataDir); err != nil {
		return err
	}
	p.setChanges(target, base, nil)
	p.Fork.Dir = randomHex(8)
	if target.raw != nil {
		return nil
	}
	if old != nil && old.Phase == database.Prepared && old.Target == p.Target {
		if now, err := e.d.server.readControl(ctx, e.d.stored("forks", old.Fork.Dir)); err == nil && now.same(old.Fork.End) {
			p.Fork, p.Kept, p.Digest, p.Rows, p.reuses = old.Fork, old.Kept, old.Digest, old.Rows, true
			p.setChanges(target, base, old.Changes[1:])
			return nil
		}
	}
	fk, found, err := e.d.keptFork(ctx, target.ID)
	if found {
		p.Fork, p.Kept, p.reuses = fk, true, true
	}
	return err
}

// Build makes a fork of the target. The live server runs on.
func (e engine) Build(ctx context.Context, p, old *plan, target, base state) error {
	if !p.reuses {
		if err := e.d.fill(ctx, p, target, base); err != nil {
			return err
		}
	}
	if old != nil && old.Fork.Dir != p.Fork.Dir && !old.Kept {
		return e.d.remove(ctx, e.d.stored("forks", old.Fork.Dir))
	}
	return nil
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

// fill makes the fork, and finds what differs between it and the live state.
func (d *Driver) fill(ctx context.Context, p *plan, target, base state) error {
	if target.raw != nil {
		return d.rawFork(ctx, *target.raw, &p.Fork)
	}
	if err := d.build(ctx, target.marker, p.facts, &p.Fork); err != nil {
		return err
	}
	p.Digest, p.Rows = p.Fork.Contents.digest(), p.Fork.Contents.Rows
	if base.raw != nil {
		return nil
	}
	limit := int64(-1)
	if p.Rows {
		limit = d.cfg.DigestLimit
	}
	now, err := readContents(ctx, d.connectTo, limit)
	if err == nil {
		p.setChanges(target, base, differences(p.Fork.Contents, now))
	}
	return err
}
