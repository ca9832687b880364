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

// plan is the durable record of a restore. It does not record which folder is live: the inodes of the folders show that, even
// after a crash between the exchange and the next record.
type plan struct {
	database.Plan
	System string    `json:"system"`
	Live   uint64    `json:"live"` // inode of the data folder with the base
	Fork   fork      `json:"fork"`
	Kept   bool      `json:"kept"`          // the fork is the folder that was swapped out at the snapshot Target
	Digest snap.Hash `json:"digest"`        // of the fork's contents; zero if they were not read
	Rows   bool      `json:"rows"`          // the digest covers every row
	From   place     `json:"from,omitzero"` // the place of the base's marker
	// The base and the target, if they are raw snapshots; From and Digest are then unused.
	RawBase   *raw      `json:"raw_base"`
	RawTarget *raw      `json:"raw_target"`
	Read      snap.Hash `json:"read"` // hash of raw files that became live, taken before a server was started in them

	facts  facts // of the live server, for Build
	reuses bool  // the fork existed before this preparation
	up     bool  // after the exchange, the server was started or its start was tried
}

// maxChanges is the most changes that a plan lists.
const maxChanges = 1000

// setChanges records the changes that the restore makes. differ has the differences between target and base.
func (p *plan) setChanges(target, base state, differ []snap.Change) {
	summary := fmt.Sprintf("from %s to %s", base, target)
	p.Changes = append([]snap.Change{{Path: "cluster", Operation: snap.Modify, Summary: summary}}, differ...)
	p.Total = len(p.Changes)
	p.Changes = p.Changes[:min(len(p.Changes), maxChanges)]
}

// exchanged reports whether the fork is in the place of the data folder.
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
	// Somebody removed or replaced the live folder. The inode in the fork's place shows which folder was live.
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

// stateHash identifies a state by its position in the history: the cluster, the timeline (a new one for each fork), and the
// position in the log up to which nothing was changed. If the contents were read, their digest is part of the hash.
func stateHash(system string, t wal.Timeline, at wal.LSN, digest snap.Hash) snap.Hash {
	h := blake3.New()
	_, _ = fmt.Fprintf(h, "mulligan postgres state 1\n%s\n", system) // never fails
	_, _ = h.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, uint32(t)), uint64(at)))
	_, _ = h.Write(digest[:])
	return snap.Hash(h.Sum(nil))
}

// baseHash returns the hash of the state before the restore.
func (p *plan) baseHash() snap.Hash {
	if p.RawBase != nil {
		return p.RawBase.Hash
	}
	return stateHash(p.System, p.From.TLI, p.From.Start, snap.Hash{})
}

// targetHash returns the hash of the state that the restore brings back.
func (p *plan) targetHash() snap.Hash {
	if p.RawTarget != nil {
		return p.RawTarget.Hash
	}
	return stateHash(p.Fork.End.System, p.Fork.End.TLI, p.Fork.End.Checkpoint, p.Digest)
}
