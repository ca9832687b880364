// Package layertree is the record of a domain's layers as the disk driver keeps it in tree.json: which
// images make a layer, what each rests on, which snapshots and restores name it, which layers
// may be merged or dropped, and which files on the host belong to it. It changes no image.
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

// layerID names a layer: "L" and a number that is never used again.
type ID string

// tree is all that the driver knows, kept in one file.
type Tree struct {
	Version   int
	Domain    string // its name, for people; UUID is what counts
	UUID      string
	Disks     []string // target devices, in order
	Seq       int
	Head      ID // what the domain writes to
	Layers    map[ID]*Layer
	Snapshots map[snap.SnapshotID]*Snapshot
	Switches  map[snap.RestoreID]*Plan
	Intent    *Intent  `json:",omitempty"`
	Thaw      bool     `json:",omitempty"` // the guest may be frozen, and must not stay so
	Suspect   bool     `json:",omitempty"` // a live switch was cut short: QEMU may have images open that libvirt does not know of
	Resume    *Resume  `json:",omitempty"`
	Out       []Out    `json:",omitempty"` // images of disks that were detached
	Ran       bool     `json:",omitempty"` // the domain was seen running since its head was made
	Paused    bool     `json:",omitempty"` // it was paused when it was stopped, and is started paused
	News      []string `json:",omitempty"` // sentences that the next snapshot tells
}

// out is the driver's image that a disk had when it was detached from the domain. It is
// not touched any more: whoever detached it may use it elsewhere.
type Out struct{ Path, Rests string }

// layer is one image per disk: what was written between two moments. Once
// frozen it never changes in content; what is below it may be merged into it.
type Layer struct {
	Parent ID                 `json:",omitempty"`
	Files  map[string]*File   // by target device
	Below  map[string][]*File `json:",omitempty"` // images of others that the layer's own rest on, nearest first
	// Rests is what single images rest on where that is not the parent's image of the
	// same disk: the backing file as the image's header has it, "" for none.
	Rests  map[string]string `json:",omitempty"`
	NVRAM  *File             `json:",omitempty"` // a copy, made as the layer froze
	Frozen bool
	// Torn: it froze while the guest's filesystems were not known to be still. A guest
	// finds it as after a power cut.
	Torn  bool   `json:",omitempty"`
	State string `json:",omitempty"` // digest of what a guest reads from here down, see seal
	// Raw: its images could not be read, and are kept as the bytes that lay there. What
	// they were meant to rest on stays, and is not looked at.
	Raw bool `json:",omitempty"`
}

// file is a file whose content is known.
type File struct {
	Path   string
	Format string `json:",omitempty"` // of an image of others: qcow2 or raw
	Stat   imagefile.Stat
	Hash   string `json:",omitempty"` // BLAKE3 in hex; "" until it was computed
	Absent bool   `json:",omitempty"` // of a raw layer: nothing lay there
}

type Snapshot struct {
	Layer    ID
	Created  time.Time
	Quiesced bool
	Memory   *File `json:",omitempty"` // the guest's memory, for a restore without a boot
}

// intent is a change of the tree that has begun.
type Intent struct {
	Op       string // capture, merge, flatten
	Old, New ID
	Running  bool `json:",omitempty"`
	// Of a merge: Old is merged into New ("": New is only put on another parent),
	// whose parent becomes Parent, and whose files become Files.
	// They lie beside those of the same name, with Suffix.
	Parent ID                `json:",omitempty"`
	Files  map[string]*File  `json:",omitempty"`
	Suffix string            `json:",omitempty"`
	Rests  map[string]string `json:",omitempty"` // what those files rest on; of flatten, the images that the disks become
	Kept   []string          `json:",omitempty"` // of flatten: other files that stay
	Memory string            `json:",omitempty"` // of a capture: the file being written
	Raw    bool              `json:",omitempty"` // of a capture: what Old holds cannot be read
}

// resume says that starting the domain means to go on from a memory image, as
// long as nothing was written to Layer.
type Resume struct {
	Layer  ID
	Memory File
	Reopen bool `json:",omitempty"` // the driver itself is in the middle of reopening the images
}

func (t *Tree) Clone() (*Tree, error) {
	data, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	c := &Tree{}
	return c, json.Unmarshal(data, c)
}

// devices lists a layer's disks, in order.
func (l *Layer) Devices() []string { return slices.Sorted(maps.Keys(l.Files)) }

// chain lists the layers from id down to the root.
func (t *Tree) Chain(id ID) (list []ID) {
	for id != "" && t.Layers[id] != nil && len(list) <= len(t.Layers) {
		list = append(list, id)
		id = t.Layers[id].Parent
	}
	return list
}

// link is a layer's image of one disk.
type link struct {
	Of  *Layer
	Dev string
}

// images lists a layer's image of a disk and all that it rests on, down to those of others,
// or to one that cannot be read.
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
			if f.Path == path { // the disk had another name then
				dev = name
			}
		}
	}
	return list
}

// imageFiles is the layer's, if there is a layer.
func (l *Layer) ImageFiles() map[string]*File {
	if l == nil {
		return nil
	}
	return l.Files
}

// depth is how many images a reader of the layer has to open, at most.
func (t *Tree) Depth(id ID) (most int) {
	for dev := range t.Layers[id].ImageFiles() {
		list := t.Images(id, dev)
		last := list[len(list)-1]
		most = max(most, len(list)+len(last.Of.Below[last.Dev]))
	}
	return most
}

// closure lists the layers that a layer's images rest on, and itself. A layer comes before
// those that rest on it.
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

// backing is the image that a layer's image of a disk rests on, "" for none. It is not known
// of images that others made.
func (t *Tree) Backing(l *Layer, dev string) (path string, known bool) {
	if path, ok := l.Rests[dev]; ok {
		return path, true
	}
	if p := t.Layers[l.Parent]; p != nil && p.Files[dev] != nil {
		return p.Files[dev].Path, true
	}
	return "", false
}

// owner finds the layer that has the image at path; "" if there is none.
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

// named lists the layers that must stay as they are: snapshots' layers, heads,
// what switches go between, and what images rest on that are not on their parents'.
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
	return named
}

// paths is the layer's files, by target device.
func (l *Layer) Paths() map[string]string {
	m := map[string]string{}
	for dev, f := range l.Files {
		m[dev] = f.Path
	}
	return m
}

// holder finds the layer whose files these are; "" if there is none.
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

// prune takes out of the tree the layers that nothing names and nothing rests on.
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

// keepRaw makes of a layer that froze a raw one; stats are of the files that are there.
func (l *Layer) KeepRaw(stats map[string]imagefile.Stat) {
	l.Raw, l.Below = true, nil
	for dev, f := range l.Files {
		if _, there := stats[dev]; !there {
			f.Absent, f.Hash = true, absent
		}
	}
}

// rests reports whether a layer is an overlay on a raw one.
func (t *Tree) Rests(l *Layer) bool {
	p := t.Layers[l.Parent]
	return p != nil && p.Raw
}

// absent is the hash of a file that is not there.
const absent = "absent"

// all is every file of the layer.
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

// state is a layer's digest: of its own files and, through its parent's, of all
// below. It is computed once. What merging does to the files later does not
// change what a guest reads, and so not the state.
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

// switching reports whether a restore has begun that must find the disks that it was
// prepared for.
func (t *Tree) Switching() bool {
	for _, p := range t.Switches {
		if p.Phase != Prepared && p.Phase != Undone {
			return true
		}
	}
	return t.Intent != nil
}

// Unfinished reports whether the guest may be frozen still.
func (t *Tree) Unfinished() bool {
	return t != nil && (t.Thaw || t.Intent != nil && t.Intent.Running)
}

// files lists the paths of everything that the tree holds.
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
