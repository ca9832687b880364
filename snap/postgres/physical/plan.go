package physical

import (
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

// setChanges fills in what the restore changes, with the differences that were found.
func (p *plan) setChanges(target, base state, differ []snap.Change) {
	summary := fmt.Sprintf("from %s to %s", base, target)
	p.Changes = append([]snap.Change{{Path: "cluster", Operation: snap.Modify, Summary: summary}}, differ...)
	p.Total = len(p.Changes)
	p.Changes = p.Changes[:min(len(p.Changes), maxChanges)]
}

// exchanged reports whether the fork is where the server looks for its data.
func (e engine) exchanged(p *plan) (bool, error) {
	n, err := asowner.Inode(e.cfg.DataDir)
	switch {
	case err != nil:
		return false, err
	case n == p.Fork.Inode:
		return true, nil
	case n == p.Live:
		return false, nil
	}
	// Somebody removed or replaced what is live; the other one tells which that was.
	switch n, err := asowner.Inode(e.store.path("forks", p.Fork.Dir)); {
	case err != nil:
		return false, err
	case n != 0 && n == p.Live:
		return true, nil
	case n != 0 && n == p.Fork.Inode:
		return false, nil
	}
	return false, errs.New(errs.Conflict, "", "the data folder %s is neither the one from before the restore nor the restored one", e.cfg.DataDir).
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

// baseHash returns the hash of the state that the restore began with.
func (p *plan) baseHash() snap.Hash {
	if p.RawBase != nil {
		return p.RawBase.Hash
	}
	return stateHash(p.System, p.From.TLI, p.From.Start, snap.Hash{})
}

// targetHash returns the hash of the state that the restore leads to.
func (p *plan) targetHash() snap.Hash {
	if p.RawTarget != nil {
		return p.RawTarget.Hash
	}
	return stateHash(p.System, p.Fork.End.TLI, p.Fork.End.Checkpoint, p.Digest)
}
