package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// state is the progress of a switch.
type state string

// The states. One that ends in "ing" was begun and may be incomplete.
const (
	prepared   state = "prepared"
	committing state = "committing"
	switched   state = "switched"
	undoing    state = "undoing"
	undone     state = "undone"
)

// plan is the durable state of a switch, with which a new process continues. It is stored as JSON under the root
// "files/<App>/switch/<id>/plan". The differences are computed again from the manifests.
type plan struct {
	Version int
	State   state
	Base    manifest.HexHash // hashes of the manifests; the roots of the switch refer to their contents
	Target  manifest.HexHash //
	Scope   [][]byte         // raw paths; empty: everything
	Notes   []string         // for the receipt
	Stayed  []string         `json:",omitempty"` // for the receipt: what the last Commit or Undo left as it is

	StayedFor [][]byte `json:",omitempty"` // raw paths of the folders among these that stayed for the files of a database
}

const planVersion = 1

func decodePlan(b []byte) (*plan, error) {
	var p plan
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return nil, err
	}
	switch p.State {
	case prepared, committing, switched, undoing, undone:
	default:
		return nil, fmt.Errorf("unknown state %q", p.State)
	}
	if p.Version != planVersion {
		return nil, fmt.Errorf("version %d; this mulligan knows %d", p.Version, planVersion)
	}
	if snap.Hash(p.Base).IsZero() || snap.Hash(p.Target).IsZero() {
		return nil, errors.New("a hash is missing")
	}
	for _, s := range p.Scope {
		if string(s) != "." && !relpath.Valid(string(s)) {
			return nil, fmt.Errorf("%q is not a path in the workspace", s)
		}
	}
	return &p, nil
}

func (p *plan) scope() relpath.Scope {
	var s relpath.Scope
	for _, b := range p.Scope {
		s = append(s, string(b))
	}
	return s
}

func (d *Driver) planRoot(id snap.RestoreID) string {
	return d.prefix() + "switch/" + string(id) + "/plan"
}

// putPlan stores a plan in b and returns its root.
func (d *Driver) putPlan(id snap.RestoreID, p *plan, b *cas.Batch) (cas.Root, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return cas.Root{}, err
	}
	var refs []snap.Hash
	for chunk := range slices.Chunk(text, cas.ChunkSize) {
		h, err := b.Blob(chunk)
		if err != nil {
			return cas.Root{}, err
		}
		refs = append(refs, h)
	}
	h, err := b.Node([]byte{manifest.Version, manifest.SortPlan}, refs)
	return cas.Root{Name: d.planRoot(id), Hash: h}, err
}

// savePlan replaces the stored plan durably.
func savePlan(d *Driver, id snap.RestoreID, p *plan) error {
	b := d.cfg.Store.Begin()
	defer b.Discard()
	r, err := d.putPlan(id, p, b)
	if err != nil {
		return err
	}
	return b.Commit(r)
}

// loadPlan reads the plan of a switch. The error is of kind errs.NotFound if there is none.
func loadPlan(d *Driver, id snap.RestoreID) (*plan, error) {
	r, err := d.cfg.Store.Root(d.planRoot(id))
	if err != nil {
		return nil, err
	}
	_, refs, err := d.cfg.Store.Node(r.Hash)
	var text []byte
	for i := 0; err == nil && i < len(refs); i++ {
		var chunk []byte
		chunk, err = d.cfg.Store.Get(refs[i])
		text = append(text, chunk...)
	}
	if err != nil {
		return nil, manifest.Damaged(r.Hash, err)
	}
	p, err := decodePlan(text)
	if err != nil {
		return nil, manifest.Damaged(r.Hash, err)
	}
	return p, nil
}
