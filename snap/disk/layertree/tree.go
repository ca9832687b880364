// Package layertree is the record of a domain's layers, which the disk driver keeps in tree.json: the images of each layer with
// their backing files, the snapshots and restores that name a layer, the layers that may be merged or removed, and the files on
// the host that belong to the tree. It changes no image.
package layertree

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/zeebo/blake3"

	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
)

// ID names a layer: "L" and a number that is never used again.
type ID string

// Tree is the driver's whole record of a domain, in one file.
type Tree struct {
	Version   int
	Domain    string // its name, for people; the UUID identifies it
	UUID      string
	Disks     []string // target devices, in order
	Seq       int
	Head      ID // the layer that the domain writes to
	Layers    map[ID]*Layer
	Snapshots map[snap.SnapshotID]*Snapshot
	Switches  map[snap.RestoreID]*Plan
	Intent    *Intent `json:",omitempty"`
	Thaw      bool    `json:",omitempty"` // the guest may be frozen, and must be thawed
	Suspect   bool    `json:",omitempty"` // a live switch was interrupted: QEMU may have images open that libvirt does not know
	Resume    *Resume `json:",omitempty"`
	Out       []Out   `json:",omitempty"` // images of disks that were detached
	// Open has the driver's images below the head that the running domain has by name, or had when it was last seen running. A guest
	// that somebody saves with its memory does not start without them, so one that is merged away leaves an empty overlay.
	Open   []string `json:",omitempty"`
	Ran    bool     `json:",omitempty"` // the domain was seen running since its head was made
	Paused bool     `json:",omitempty"` // it was paused when it was stopped, and is started paused
	News   []string `json:",omitempty"` // messages for the next snapshot
	// Lent has the layers on which forks of the app rest, by the fork's app id. They and all layers below stay as they are.
	Lent map[string]ID `json:",omitempty"`
	// Made has the paths of files and sockets that the domain of a fork makes on the host, besides its disks.
	Made []string `json:",omitempty"`
}

// Out is the driver's image of a disk that was detached from the domain. The driver does not change it any more, because it may
// be in use elsewhere.
type Out struct{ Path, Rests string }

// Layer has one image per disk, with the data that were written between two moments. The data that a guest reads from a frozen
// layer never change, but layers below may be merged into it.
type Layer struct {
	Parent ID                 `json:",omitempty"`
	Files  map[string]*File   // by target device
	Below  map[string][]*File `json:",omitempty"` // backing files that others made, nearest first
	// Rests has the backing files of single images that are not the parent's image of the same disk, as in the image's header; ""
	// means no backing file.
	Rests  map[string]string `json:",omitempty"`
	NVRAM  *File             `json:",omitempty"` // a copy, made when the layer was frozen
	Frozen bool
	// Torn is set if the guest's filesystems may not have been frozen when the layer was frozen. For a guest, the layer is as
	// after a power cut.
	Torn  bool   `json:",omitempty"`
	State string `json:",omitempty"` // digest of the data that a guest reads from the layer
	// Raw is set if the layer's images could not be read. Their bytes are kept, and their backing files stay, but are not checked.
	Raw bool `json:",omitempty"`
	// Borrowed is set in the root of a fork: its images belong to the parent's driver, which alone changes them and their flags.
	Borrowed bool `json:",omitempty"`
}

// File is a file with its hash.
type File struct {
	Path   string
	Format string `json:",omitempty"` // of an image that others made: qcow2 or raw
	Stat   imagefile.Stat
	Hash   string `json:",omitempty"` // BLAKE3 in hex; "" until it was computed
	Absent bool   `json:",omitempty"` // of a raw layer: the file did not exist
}

type Snapshot struct {
	Layer    ID
	Created  time.Time
	Quiesced bool
	Memory   *File `json:",omitempty"` // the guest's memory, for a restore without a boot
}

// Intent is the record of a change of the tree that has begun.
type Intent struct {
	Op       string // capture, merge, flatten
	Old, New ID
	Running  bool `json:",omitempty"`
	// In a merge, Old is merged into New, whose parent becomes Parent, and whose files become Files. If Old is "", New only gets
	// another parent. The new files are beside the old ones, with Suffix after the name.
	Parent ID                `json:",omitempty"`
	Files  map[string]*File  `json:",omitempty"`
	Suffix string            `json:",omitempty"`
	Rests  map[string]string `json:",omitempty"` // the backing files of Files; in a flatten, the images that the disks get
	Kept   []string          `json:",omitempty"` // in a flatten: other files that stay
	Memory string            `json:",omitempty"` // in a capture: the memory file that is being written
	Raw    bool              `json:",omitempty"` // in a capture: the images of Old cannot be read
}

// Resume records that the next start of the domain resumes it from a memory image, unless something was written to Layer.
type Resume struct {
	Layer  ID
	Memory File
	Reopen bool `json:",omitempty"` // the driver is reopening the images
}

func (t *Tree) Clone() (*Tree, error) {
	data, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	c := &Tree{}
	return c, json.Unmarshal(data, c)
}

// Devices lists a layer's disks in order.
func (l *Layer) Devices() []string { return slices.Sorted(maps.Keys(l.Files)) }

// Chain lists the layers from id down to the root.
func (t *Tree) Chain(id ID) (list []ID) {
	for id != "" && t.Layers[id] != nil && len(list) <= len(t.Layers) {
		list = append(list, id)
		id = t.Layers[id].Parent
	}
	return list
}

// link is a layer's image of a disk.
type link struct {
	Of  *Layer
	Dev string
}

// Images lists a layer's image of a disk and its backing chain, down to the images that others made, or to one that cannot be
// read.
func (t *Tree) Images(id ID, dev string) (list []link) {
	l := t.Layers[id]
	for l != nil && l.Files[dev] != nil && len(list) <= len(t.Layers) {
		list = append(list, link{l, dev})
		if l.Raw {
			return list
		}
		path, own := l.Rests[dev]
		if !own {
			l = t.Layers[l.Parent]
			continue
		}
		l = t.Layers[t.Owner(path)]
		for name, f := range l.ImageFiles() {
			if f.Path == path { // the disk had another name at that time
				dev = name
			}
		}
	}
	return list
}

// ImageFiles returns the files of the layer id, or nil if there is no such layer.
func (l *Layer) ImageFiles() map[string]*File {
	if l == nil {
		return nil
	}
	return l.Files
}

// Depth returns the length of the longest backing chain of the layer.
func (t *Tree) Depth(id ID) (most int) {
	for dev := range t.Layers[id].ImageFiles() {
		list := t.Images(id, dev)
		last := list[len(list)-1]
		most = max(most, len(list)+len(last.Of.Below[last.Dev]))
	}
	return most
}

// Closure lists a layer and the layers of its images' backing chains. A layer comes before the layers above it.
func (t *Tree) Closure(id ID) (list []ID) {
	seen := map[ID]bool{}
	var visit func(id ID)
	visit = func(id ID) {
		l := t.Layers[id]
		if l == nil || seen[id] {
			return
		}
		seen[id] = true
		if !l.Raw {
			visit(l.Parent)
			for _, dev := range slices.Sorted(maps.Keys(l.Rests)) {
				visit(t.Owner(l.Rests[dev]))
			}
		}
		list = append(list, id)
	}
	visit(id)
	return list
}

func (t *Tree) children(id ID) (list []ID) {
	for c, l := range t.Layers {
		if l.Parent == id {
			list = append(list, c)
		}
	}
	slices.Sort(list)
	return list
}

// Backing returns the backing file of a layer's image of a disk; "" means none. It is not known for images that others made.
func (t *Tree) Backing(l *Layer, dev string) (path string, known bool) {
	if path, ok := l.Rests[dev]; ok {
		return path, true
	}
	if p := t.Layers[l.Parent]; p != nil && p.Files[dev] != nil {
		return p.Files[dev].Path, true
	}
	return "", false
}

// Owner returns the layer that has the image at path; "" means none.
func (t *Tree) Owner(path string) ID {
	for id, l := range t.Layers {
		for _, f := range l.Files {
			if f.Path == path {
				return id
			}
		}
	}
	return ""
}

// named lists the layers that must not be merged: layers of snapshots, heads, the base and target of switches, and layers with
// the backing files of images whose backing file is not in their parent.
func (t *Tree) named() map[ID]bool {
	named := map[ID]bool{t.Head: true}
	for _, l := range t.Layers {
		for _, path := range l.Rests {
			named[t.Owner(path)] = true
		}
		if l.Raw {
			named[l.Parent] = true
		}
	}
	for _, o := range t.Out {
		named[t.Owner(o.Path)], named[t.Owner(o.Rests)] = true, true
	}
	for _, s := range t.Snapshots {
		named[s.Layer] = true
	}
	for _, p := range t.Switches {
		for _, id := range []ID{p.TargetLayer, p.BaseLayer, p.Old, p.New} {
			named[id] = true
		}
	}
	if t.Intent != nil {
		named[t.Intent.Old], named[t.Intent.New] = true, true
	}
	for id := range t.lent() {
		named[id] = true
	}
	return named
}

// lent is the set of layers whose images are backing files of forks.
func (t *Tree) lent() map[ID]bool {
	all := map[ID]bool{}
	for _, id := range t.Lent {
		for _, below := range t.Closure(id) {
			all[below] = true
		}
	}
	return all
}

// Paths returns the paths of the layer's files, by target device.
func (l *Layer) Paths() map[string]string {
	m := map[string]string{}
	for dev, f := range l.Files {
		m[dev] = f.Path
	}
	return m
}

// Holder returns the layer with these files; "" means none.
func (t *Tree) Holder(sources map[string]string) ID {
	for id, l := range t.Layers {
		if SamePaths(l.Paths(), sources, t.Disks) {
			return id
		}
	}
	return ""
}

func SamePaths(a, b map[string]string, devs []string) bool {
	for _, dev := range devs {
		if a[dev] != b[dev] {
			return false
		}
	}
	return true
}

// SameDisks reports whether two layers have images of the same disks.
func SameDisks(a, b *Layer) bool { return slices.Equal(a.Devices(), b.Devices()) }

// Flat returns a copy of a layer that has all backing files of its images in Below.
func (t *Tree) Flat(id ID) *Layer {
	l := *t.Layers[id]
	l.Parent, l.Rests, l.Below = "", nil, map[string][]*File{}
	for dev := range l.Files {
		chain := t.Images(id, dev)
		for _, k := range chain[1:] {
			f := *k.Of.Files[k.Dev]
			f.Format = "qcow2"
			l.Below[dev] = append(l.Below[dev], &f)
		}
		last := chain[len(chain)-1]
		l.Below[dev] = append(l.Below[dev], last.Of.Below[last.Dev]...)
	}
	return &l
}

// Prune removes the layers that nothing names and that have no layer above.
func (t *Tree) Prune() (gone []*Layer) {
	for again := true; again; {
		again = false
		named := t.named()
		for id, l := range t.Layers {
			if named[id] || len(t.children(id)) > 0 {
				continue
			}
			gone = append(gone, l)
			delete(t.Layers, id)
			again = true
		}
	}
	return gone
}

// KeepRaw marks a frozen layer as raw. stats are of its files that exist.
func (l *Layer) KeepRaw(stats map[string]imagefile.Stat) {
	l.Raw, l.Below = true, nil
	for dev, f := range l.Files {
		if _, there := stats[dev]; !there {
			f.Absent, f.Hash = true, absent
		}
	}
}

// Rests reports whether a layer is an overlay on a raw layer.
func (t *Tree) Rests(l *Layer) bool {
	p := t.Layers[l.Parent]
	return p != nil && p.Raw
}

// absent stands for the hash of a file that does not exist.
const absent = "absent"

// All lists all files of the layer.
func (l *Layer) All() (list []*File) {
	for _, f := range l.Files {
		list = append(list, f)
	}
	for _, below := range l.Below {
		list = append(list, below...)
	}
	if l.NVRAM != nil {
		list = append(list, l.NVRAM)
	}
	return list
}

// Digest returns a layer's digest, over its own files and, by its parent's digest, over all layers below. It is computed once.
// A later merge changes the files but not the data that a guest reads, so the digest stays.
func (t *Tree) Digest(l *Layer) string {
	h := blake3.New()
	put := func(s string) {
		_, _ = h.WriteString(s) // never fails
		_, _ = h.Write([]byte{0})
	}
	put("mulligan disks 1")
	if p := t.Layers[l.Parent]; p != nil && !l.Raw {
		put(p.State)
	}
	for _, dev := range l.Devices() {
		put(dev)
		put(l.Files[dev].Hash)
		if o := t.Layers[t.Owner(l.Rests[dev])]; o != nil {
			put(o.State)
		}
		for _, f := range l.Below[dev] {
			put(f.Hash)
		}
	}
	put(l.NVRAMHash())
	return hex.EncodeToString(h.Sum(nil))
}

func (l *Layer) NVRAMHash() string {
	if l.NVRAM == nil {
		return ""
	}
	return l.NVRAM.Hash
}

// Switching reports whether a restore under way needs the disks for which it was prepared.
func (t *Tree) Switching() bool {
	for _, p := range t.Switches {
		if p.Phase != Prepared && p.Phase != Undone {
			return true
		}
	}
	return t.Intent != nil
}

// Unfinished reports whether the guest may still be frozen.
func (t *Tree) Unfinished() bool {
	return t != nil && (t.Thaw || t.Intent != nil && t.Intent.Running)
}

// Files lists the paths of all files in the tree.
func (t *Tree) Files() (list []string) {
	for _, l := range t.Layers {
		for _, f := range l.Files {
			list = append(list, f.Path)
		}
		if l.NVRAM != nil {
			list = append(list, l.NVRAM.Path)
		}
	}
	for _, s := range t.Snapshots {
		if s.Memory != nil {
			list = append(list, s.Memory.Path)
		}
	}
	if t.Resume != nil {
		list = append(list, t.Resume.Memory.Path)
	}
	for _, o := range t.Out {
		list = append(list, o.Path)
	}
	return list
}
