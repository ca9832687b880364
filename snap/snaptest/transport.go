package snaptest

import (
	"testing"

	"mulligan/errs"
	"mulligan/snap"
)

// Receiver is a Subject whose exported snapshots have contents that are in no content store.
type Receiver interface {
	// Receive puts the contents of p to where Import reads.
	Receive(t *testing.T, p snap.Portable)
	// Imported returns the fingerprint that an imported snapshot has. That of the snapshot that was sent is given, and that of the live state at the
	// import, parts of which it may take on.
	Imported(sent, there string) string
}

// transport checks that an exported snapshot can be imported under another id, and is then a snapshot of its own with the same
// state; and that Import refuses what is not of its kind, damaged or not in the store.
func transport(h *harness) {
	d, ok := snap.TransporterOf(h.driver())
	if !ok {
		return
	}
	h.mutate()
	first := h.capture()
	h.mutate()
	h.capture()
	_, _, err := d.Export(h.ctx, "tt-ffffffffffff")
	h.fails("Export of an unknown id", err, errs.NotFound)
	p, release, err := d.Export(h.ctx, first.ID)
	h.must("Export", err)
	h.delete(first) // what is exported stays until it is released
	second := first
	if p.Contents != nil {
		r := h.subject.(Receiver)
		r.Receive(h.t, p)
		second.print = r.Imported(first.print, h.print())
	}
	second.ID = h.snapshotID()
	second.Snapshot, err = d.Import(h.ctx, p, second.ID)
	h.must("Import", err)
	release()
	if second.Hash != first.Hash && !first.Hash.IsZero() {
		h.Errorf("imported with hash %s, exported with %s", second.Hash, first.Hash)
	}
	for what, bad := range map[string]snap.Portable{
		"of another driver":   {Driver: p.Driver + "x", Object: p.Object, Meta: p.Meta},
		"of an absent object": {Driver: p.Driver, Object: snap.Hash{1, 2, 3}, Meta: p.Meta},
		"without a meta":      {Driver: p.Driver, Object: p.Object, Meta: []byte("{")},
	} {
		id := h.snapshotID()
		if _, err := d.Import(h.ctx, bad, id); err == nil {
			h.Errorf("Import took a snapshot %s", what)
		}
		h.missing(id, second)
	}
	h.reopen()
	h.must("Sweep", h.driver().Sweep(h.ctx, snap.Gone{}))
	h.verify(second, snap.Full)
	h.restore(second)
}
