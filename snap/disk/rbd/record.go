package rbd

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/zeebo/blake3"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

const version = 1

// record is all that the driver knows of a domain, in one file. What has the driver's names in the cluster and is not in the record is
// garbage.
type record struct {
	Version   int
	Domain    string // its name, for people; the UUID identifies it
	UUID      string
	NVRAM     string            `json:",omitempty"` // path of the domain's variable store
	Reach     virt.Volume       // how the definition says that the cluster is reached
	Seq       int               // of names in the cluster, which are used once
	Head      map[string]string // the image that the domain writes to, by target device
	Images    map[string]*image // by name: POOL/IMAGE
	Snapshots map[snap.SnapshotID]*snapshot
	Switches  map[snap.RestoreID]*plan
	Intent    *intent  `json:",omitempty"` // a capture that has begun
	Hold      *hold    `json:",omitempty"` // the guest may be held still
	Doomed    []doomed `json:",omitempty"`
	Ran       bool     `json:",omitempty"` // the domain was seen running since its head was made
	Paused    bool     `json:",omitempty"` // it was paused when it was stopped, and is started paused
	News      []string `json:",omitempty"` // sentences for the next snapshot
}

// image is an image of the domain's, or a clone that the driver has made.
type image struct {
	ID     string    // Ceph's; "" until the driver has seen the clone whole
	Ours   bool      `json:",omitempty"`
	Named  time.Time `json:",omitzero"`  // when a clone was given its name, before it was made
	Parent point     `json:",omitzero"`  // what a clone was made of
	Base   string    `json:",omitempty"` // the snapshot of a clone before anything was written to it
	Still  bool      `json:",omitempty"` // the guest's filesystems were consistent in Parent
	Out    bool      `json:",omitempty"` // it was detached from the domain, and may be in use elsewhere: it stays
	Going  bool      `json:",omitempty"` // it is being removed, and not used again
}

// point is one snapshot of one image.
type point struct {
	Image, Snap string
	ID          uint64 // Ceph's, of the snapshot
	Size        int64  // of the disk, in bytes
	Hash        string `json:",omitempty"` // BLAKE3 of the contents, in hex, once they were read
}

// snapshot is all disks at one instant.
type snapshot struct {
	Disks    map[string]point // by target device
	NVRAM    *layertree.File  `json:",omitempty"` // a copy
	Created  time.Time
	Quiesced bool
}

// intent is a capture that has begun: the snapshots that it makes.
type intent struct{ Disks map[string]point }

// hold is what was done to a running guest so that its disks stand still.
type hold struct {
	Paused bool // it is to run on
	Frozen bool // its filesystems are to be thawed
	// Late is set if libvirt did not answer the request to pause the guest: it may be paused as late as then.
	Late time.Time `json:",omitzero"`
}

// doomed is a snapshot that nothing needs any more. The request for it may still be under way until Until.
type doomed struct {
	point
	Until time.Time
}

// plan is the record of a switch from the images Old to the clones New.
type plan struct {
	Target, Base snap.SnapshotID
	To, From     snapshot // target and base
	Old, New     map[string]string
	Phase        layertree.Phase
	Changes      []snap.Change
}

func recordFile(dir string) string { return filepath.Join(dir, "rbd.json") }

// Holds reports whether the folder has the records of a domain with disks on Ceph.
func Holds(stateDir string) bool {
	_, err := os.Stat(recordFile(stateDir))
	return err == nil
}

// readRecord returns nil if there is no record.
func readRecord(op, dir string) (*record, error) {
	r := &record{}
	switch err := durable.ReadJSON(recordFile(dir), r); {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errs.KindOf(err) == errs.Corrupt:
		return nil, errs.New(errs.Corrupt, op, "the record of the disks: %v", err).WithHint("the disks are whole: put the file back from a backup")
	case err != nil:
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if r.Version != version {
		return nil, errs.New(errs.Unsupported, op, "%s has version %d", recordFile(dir), r.Version).WithHint("a newer mulligan wrote it: use that one")
	}
	return r, nil
}

func (r *record) write(dir string) error { return durable.WriteJSON(recordFile(dir), r) }

func (r *record) clone() (*record, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	c := &record{}
	return c, json.Unmarshal(data, c)
}

// devices lists the captured disks in order.
func (r *record) devices() []string { return slices.Sorted(maps.Keys(r.Head)) }

// live lists the snapshots that something needs: those that have a name, and the two of each switch.
func (r *record) live() (list []*snapshot) {
	for _, s := range r.Snapshots {
		list = append(list, s)
	}
	for _, p := range r.Switches {
		list = append(list, &p.To, &p.From)
	}
	return list
}

// needed reports whether something needs a snapshot of an image.
func (r *record) needed(p point) bool {
	for _, s := range r.live() {
		for _, other := range s.Disks {
			if other.Image == p.Image && other.Snap == p.Snap {
				return true
			}
		}
	}
	return false
}

// doom marks the snapshots of images for removal, unless something needs them.
func (r *record) doom(disks map[string]point, until time.Time) {
	for _, p := range disks {
		again := slices.ContainsFunc(r.Doomed, func(d doomed) bool { return d.at() == p.at() })
		if !again && !r.needed(p) {
			r.Doomed = append(r.Doomed, doomed{p, until})
		}
	}
}

// idle lists the clones that nothing needs: the domain does not use them, no switch will, and they have neither snapshots nor clones.
func (r *record) idle() (list []string) {
	used := map[string]bool{}
	use := func(images map[string]string) {
		for _, name := range images {
			used[name] = true
		}
	}
	use(r.Head)
	for _, p := range r.Switches {
		use(p.Old)
		use(p.New)
	}
	for _, s := range r.live() {
		for _, p := range s.Disks {
			used[p.Image] = true
		}
	}
	for _, d := range r.Doomed {
		used[d.Image] = true
	}
	if r.Intent != nil {
		for _, p := range r.Intent.Disks {
			used[p.Image] = true
		}
	}
	for _, i := range r.Images {
		used[i.Parent.Image] = true
	}
	for name, i := range r.Images {
		if i.Ours && !i.Out && !used[name] {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// switching reports whether a restore under way needs the disks for which it was prepared.
func (r *record) switching() bool {
	for _, p := range r.Switches {
		if p.Phase != layertree.Prepared && p.Phase != layertree.Undone {
			return true
		}
	}
	return r.Intent != nil
}

// files lists the copies of NVRAM that something needs.
func (r *record) files() (list []string) {
	for _, s := range r.live() {
		if s.NVRAM != nil {
			list = append(list, s.NVRAM.Path)
		}
	}
	return list
}

// depth returns the number of images that the reads of an image may go through.
func (r *record) depth(name string) (n int) {
	for i := r.Images[name]; i != nil && n <= len(r.Images); i = r.Images[i.Parent.Image] {
		n++
	}
	return n
}

// digest identifies a state: Ceph never changes a snapshot, and uses an image's id and the number of its snapshot once.
func (r *record) digest(s snapshot) snap.Hash {
	h := blake3.New()
	put := func(text string) {
		_, _ = h.WriteString(text) // never fails
		_, _ = h.Write([]byte{0})
	}
	put("mulligan disks on Ceph 1")
	for _, dev := range slices.Sorted(maps.Keys(s.Disks)) {
		p := s.Disks[dev]
		put(dev)
		if i := r.Images[p.Image]; i != nil {
			put(i.ID)
		}
		put(strconv.FormatUint(p.ID, 10))
	}
	if s.NVRAM != nil {
		put(s.NVRAM.Hash)
	}
	return snap.Hash(h.Sum(nil))
}

// shown returns the digest as text, for a snapshot's position.
func (r *record) shown(s snapshot) string {
	d := r.digest(s)
	return hex.EncodeToString(d[:8])
}
