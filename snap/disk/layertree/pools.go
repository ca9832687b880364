package layertree

import (
	"path/filepath"
	"slices"
	"strings"
)

// Pools says where the driver keeps the files that it makes for one app.
type Pools struct {
	App string // the app's id: the name of its folders
	Dir string // the folder of all apps' pools; "": one beside each disk
}

// Folder is the folder where a disk's overlays lie.
func (p Pools) Folder(t *Tree, dev string) string {
	if p.Dir != "" {
		return filepath.Join(p.Dir, p.App)
	}
	dir := ""
	for _, id := range t.Chain(t.Head) { // the lowest layer that has the disk
		if f := t.Layers[id].Files[dev]; f != nil {
			dir = filepath.Dir(f.Path)
		}
	}
	own := filepath.Join("mulligan", p.App)
	if strings.HasSuffix(dir, "/"+own) {
		return dir // the root was merged into an overlay
	}
	return filepath.Join(dir, own)
}

// Owns reports whether the file at path is one that the driver made.
func (p Pools) Owns(path string) bool { return Ours(filepath.Base(path)) && p.Holds(path) }

// Holds reports whether a file lies in a folder of the app's layers.
func (p Pools) Holds(path string) bool { return filepath.Base(filepath.Dir(path)) == p.App }

// Foreign reports whether an image of the layer is not the driver's.
func (p Pools) Foreign(l *Layer) bool {
	for _, f := range l.Files {
		if !p.Owns(f.Path) {
			return true
		}
	}
	return false
}

// Places lists the images of all layers, and the folders that drivers keep layers in. Beside the
// images that is the folder of all apps' pools: it is made with the first capture.
func (p Pools) Places(t *Tree) (list []string) {
	for _, l := range t.Layers {
		for _, f := range l.All() {
			list = append(list, f.Path)
		}
	}
	for _, dev := range t.Disks {
		folder := p.Folder(t, dev)
		if p.Dir == "" {
			folder = filepath.Dir(folder)
		}
		list = append(list, folder)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Ours reports whether a file's name is of a kind that the driver makes.
func Ours(name string) bool {
	for _, pattern := range []string{"L??????-*.qcow2", "L??????-*.qcow2.merge-*", "L??????-*.nvram", "L??????-*.nvram.tmp", "L??????-*.nvram.new", "*.memory"} {
		if ok, _ := filepath.Match(pattern, name); ok {
			return true
		}
	}
	return false
}
