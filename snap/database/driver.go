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

// Engine is the engine-specific part of a driver whose snapshots are in the content store. The Driver calls at most one method
// at a time.
type Engine[P Planned] interface {
	Steps[P, cas.Root]

	// Read reads the live state into b.
	Read(ctx context.Context, b *cas.Batch) (State, error)

	// CheckStored checks that the parts of a stored snapshot fit together, beyond the hashes
	// that the store itself verifies.
	CheckStored(ctx context.Context, root cas.Root, depth snap.Depth) error

	// ReadBack reads the live state and returns its hash, or want's hash if the two states are equal by the engine's own rules.
	// notes become the Notes of the snap.Proof.
	ReadBack(ctx context.Context, p P, want cas.Root) (hash snap.Hash, notes []string, err error)
}

// State is a live state that Engine.Read has put into a batch.
type State struct {
	Node     cas.Hash // root node of the content
	Hash     snap.Hash
	Meta     any // stored as JSON in the snapshot's root; must have the field "hash"
	Position string
	Raw      bool
	Warnings []string
	// Stored, if set, is called with the name of the snapshot's root once it is durable.
	Stored func(root string)
}

// Driver is the engine-independent part of a driver: it runs the steps of captures and
// switches in order, and makes the plan durable before each of them.
type Driver[T any, P planPointer[T]] struct {
	*Switcher[T, P, cas.Root]
	engine  Engine[P]
	records *Records
}

// NewDriver returns a driver whose roots and plans are in r.
func NewDriver[T any, P planPointer[T]](r *Records, e Engine[P]) *Driver[T, P] {
	d := &Driver[T, P]{engine: e, records: r}
	d.Switcher = NewSwitcher[T, P](r.Plans, r, e, d.check)
	return d
}

// CapturesLive returns true: a capture reads a transactionally consistent state.
func (d *Driver[T, P]) CapturesLive() bool { return true }

// Capture stores the live state under req.ID. The snapshot is consistent: the state at one moment during the call.
func (d *Driver[T, P]) Capture(ctx context.Context, req snap.CaptureRequest) (s snap.Snapshot, err error) {
	return d.CaptureWith(ctx, "capture "+d.records.noun, req, d.engine.Read)
}

// CaptureWith is Capture with read instead of Engine.Read.
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

// store commits b, and makes the state s durable as the snapshot id.
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

// HashOf returns the hash of the state that was captured with the root.
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

// Meta returns the State.Meta of the snapshot with this root. M must be the type of that value.
func Meta[M any](root cas.Root) (m M, err error) {
	err = json.Unmarshal(root.Meta, &m)
	return m, errs.Wrap(errs.Corrupt, "read a snapshot", err)
}

// Has returns an errs.Corrupt error unless h, the hash of the stored content, is the hash with which the root was captured.
func Has(root cas.Root, h snap.Hash) error {
	if was, err := HashOf(root); err != nil || was != h {
		return errs.New(errs.Corrupt, "", "the snapshot does not have the hash it was captured with").WithHint("use another checkpoint")
	}
	return nil
}

// Classify adds the operation to err, and a kind if it has none. If there was no space left on the file system of dir, it adds
// a hint.
func Classify(op string, err error, dir string) error {
	var known *errs.Error
	if err != nil && !errors.As(err, &known) && errors.Is(err, unix.ENOSPC) {
		return &errs.Error{Kind: errs.Failed, Op: op, Err: err, Hint: "free some space on the file system of " + dir}
	}
	return errs.Wrap(errs.Failed, op, err)
}

// Verify implements snap.Driver.
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

// Size returns the bytes that deleting exactly these snapshots together would free.
func (d *Driver[T, P]) Size(_ context.Context, ids ...snap.SnapshotID) (int64, error) {
	return d.records.Size(ids...)
}

func (d *Driver[T, P]) Delete(_ context.Context, id snap.SnapshotID) error {
	return d.records.Delete(id)
}

// Sweep drops the snapshots and switches that gone names, and switches whose preparation was not completed.
func (d *Driver[T, P]) Sweep(ctx context.Context, gone snap.Gone) error {
	return d.Do(ctx, "sweep "+d.records.noun+" snapshots", func() error {
		if err := d.SweepSwitches(ctx, gone.Restores); err != nil {
			return err
		}
		return d.records.Sweep(gone)
	})
}

// check reads the live state and compares it with the target, or after an Undo with the base.
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
