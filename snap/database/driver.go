package database

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// Engine is what a kind of database does in its own way, where its snapshots are in the content
// store. A Driver calls one method at a time.
type Engine[P Planned] interface {
	Steps[P, cas.Root]

	// Read puts the live state into b.
	Read(ctx context.Context, b *cas.Batch) (State, error)

	// CheckStored checks what a snapshot's root holds, beyond what the store checks itself:
	// that its parts fit together.
	CheckStored(ctx context.Context, root cas.Root, depth snap.Depth) error

	// ReadBack reads the live state and returns its hash: that of want wherever the two are
	// equal by the engine's own rules. The notes are for the reader of the proof.
	ReadBack(ctx context.Context, p P, want cas.Root) (hash snap.Hash, notes []string, err error)
}

// State is a live state that was read into a batch.
type State struct {
	Node     cas.Hash // what holds it
	Hash     snap.Hash
	Meta     any // what the snapshot's root says of it, as JSON with a field "hash"
	Position string
	Raw      bool
	Warnings []string
	// Stored, where set, is called with the name of the snapshot's root once it is durable.
	Stored func(root string)
}

// Driver is the part of a driver that is the same for every engine: the order of
// the steps of captures and switches, and what is on the disk before each of them.
type Driver[T any, P planPointer[T]] struct {
	*Switcher[T, P, cas.Root]
	engine  Engine[P]
	records *Records
}

// NewDriver makes the driver of the database whose records r are.
func NewDriver[T any, P planPointer[T]](r *Records, e Engine[P]) *Driver[T, P] {
	d := &Driver[T, P]{engine: e, records: r}
	d.Switcher = NewSwitcher[T, P](r.Plans, r, e, d.check)
	return d
}

// CapturesLive is true: the state that a capture reads is that of one moment.
func (d *Driver[T, P]) CapturesLive() bool { return true }

// Capture stores the live state under req.ID: that of one moment between the call and
// the return.
func (d *Driver[T, P]) Capture(ctx context.Context, req snap.CaptureRequest) (s snap.Snapshot, err error) {
	return d.CaptureWith(ctx, "capture "+d.records.noun, req, d.engine.Read)
}

// CaptureWith is Capture with another way to read the live state.
func (d *Driver[T, P]) CaptureWith(ctx context.Context, op string, req snap.CaptureRequest,
	read func(context.Context, *cas.Batch) (State, error),
) (s snap.Snapshot, err error) {
	if !ValidName(string(req.ID)) {
		return s, errs.New(errs.Invalid, op, "%q is not a snapshot id", req.ID)
	}
	err = d.Do(ctx, op, func() error {
		b := d.records.store.Begin()
		defer b.Discard()
		now, err := read(ctx, b)
		if err != nil {
			return err
		}
		if err := d.store(ctx, b, req.ID, now); err != nil {
			return err
		}
		s = snap.Snapshot{
			ID: req.ID, Driver: d.records.driver, Hash: now.Hash, Position: now.Position, Raw: now.Raw,
			Quiesced: req.Quiesced, Created: time.Now().UTC(), Warnings: now.Warnings,
		}
		return nil
	})
	return s, err
}

// store makes what is in b durable under a snapshot's name.
func (d *Driver[T, P]) store(ctx context.Context, b *cas.Batch, id snap.SnapshotID, s State) error {
	data, err := json.Marshal(s.Meta)
	if err != nil {
		return errs.Wrap(errs.Internal, "", err)
	}
	if err := errors.Join(ctx.Err(), d.records.failpoint.At("capture: commit")); err != nil {
		return err
	}
	root := cas.Root{Name: d.records.SnapshotRoot(id), Hash: s.Node, Meta: data}
	if err := b.Commit(root); err != nil {
		return err
	}
	if s.Stored != nil {
		s.Stored(root.Name)
	}
	return nil
}

// HashOf is the hash of the state that a root holds.
func HashOf(root cas.Root) (h snap.Hash, err error) {
	const op = "read a snapshot"
	var m struct {
		Hash string `json:"hash"`
	}
	if err := json.Unmarshal(root.Meta, &m); err != nil {
		return h, errs.Wrap(errs.Corrupt, op, err)
	}
	raw, err := hex.DecodeString(strings.TrimPrefix(m.Hash, "blake3:"))
	if err != nil || len(raw) != len(h) {
		return h, errs.New(errs.Corrupt, op, "%q is not a hash", m.Hash).WithHint("use another checkpoint")
	}
	return snap.Hash(raw), nil
}

// Meta reads what a root says of its snapshot, which is an M.
func Meta[M any](root cas.Root) (m M, err error) {
	err = json.Unmarshal(root.Meta, &m)
	return m, errs.Wrap(errs.Corrupt, "read a snapshot", err)
}

// Has checks that the hash which a root was captured with is h, that of what the root holds.
func Has(root cas.Root, h snap.Hash) error {
	if was, err := HashOf(root); err != nil || was != h {
		return errs.New(errs.Corrupt, "", "the snapshot does not have the hash it was captured with").WithHint("use another checkpoint")
	}
	return nil
}

// Classify gives err a kind and the operation, where it has none, and a hint where no space was left
// on the file system of dir.
func Classify(op string, err error, dir string) error {
	var known *errs.Error
	if err != nil && !errors.As(err, &known) && errors.Is(err, unix.ENOSPC) {
		return &errs.Error{Kind: errs.Failed, Op: op, Err: err, Hint: "free some space on the file system of " + dir}
	}
	return errs.Wrap(errs.Failed, op, err)
}

// Verify checks what is stored for a snapshot.
func (d *Driver[T, P]) Verify(ctx context.Context, id snap.SnapshotID, depth snap.Depth) error {
	op := "verify " + d.records.noun + " snapshot"
	root, err := d.records.Snapshot(op, id)
	if err != nil {
		return err
	}
	if err := d.records.store.Check(ctx, root.Name, depth == snap.Full); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	return errs.Wrap(errs.Failed, op, Damaged(d.engine.CheckStored(ctx, root, depth)))
}

// Size is the number of bytes that deleting exactly these snapshots together would free.
func (d *Driver[T, P]) Size(_ context.Context, ids ...snap.SnapshotID) (int64, error) {
	return d.records.Size(ids...)
}

// Delete drops a snapshot.
func (d *Driver[T, P]) Delete(_ context.Context, id snap.SnapshotID) error {
	return d.records.Delete(id)
}

// Sweep drops the snapshots and switches that gone names, and what was never prepared.
func (d *Driver[T, P]) Sweep(ctx context.Context, gone snap.Gone) error {
	return d.Do(ctx, "sweep "+d.records.noun+" snapshots", func() error {
		if err := d.SweepSwitches(ctx, gone.Restores); err != nil {
			return err
		}
		return d.records.Sweep(gone)
	})
}

// check reads the live state again and compares it with the target, or after an Undo with the base.
func (d *Driver[T, P]) check(ctx context.Context, p P, target, base cas.Root) (proof snap.Proof, err error) {
	want := target
	if p.Head().Back() {
		want = base
	}
	if proof.Pre, err = HashOf(base); err != nil {
		return proof, err
	}
	if proof.Want, err = HashOf(want); err != nil {
		return proof, err
	}
	proof.Post, proof.Notes, err = d.engine.ReadBack(ctx, p, want)
	proof.Match = err == nil && proof.Post == proof.Want
	return proof, err
}
