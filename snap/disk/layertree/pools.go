package layertree

import (
	"path/filepath"
	"slices"
)

// Pools determines the folders of the files that the driver makes for an app.
type Pools struct {
	App string // the app's id: the name of its folders
	Dir string // the folder of all apps' pools; "": one beside each disk
}

// Folder returns the folder of a disk's overlays.
func (p Pools) Folder(t *Tree, dev string) string {
	path, borrowed := "", false
	for _, id := range t.Chain(t.Head) { // ends at the lowest layer that has the disk
		if f := t.Layers[id].Files[dev]; f != nil {
			path, borrowed = f.Path, t.Layers[id].Borrowed
		}
	}
	return p.beside(path, borrowed)
}

// beside returns the folder of the app's overlays if the image at path is the lowest that the app's record has of a disk. That image
// may be in the app's folder, if the root was merged into an overlay, or in the folder of its parent, if the app is a fork.
func (p Pools) beside(path string, borrowed bool) string {
	if p.Dir != "" {
		return filepath.Join(p.Dir, p.App)
	}
	dir := filepath.Dir(path)
	if pools := filepath.Dir(dir); filepath.Base(pools) == poolsName && (filepath.Base(dir) == p.App || borrowed && Ours(filepath.Base(path))) {
		return filepath.Join(pools, p.App)
	}
	return filepath.Join(dir, poolsName, p.App)
}

// poolsName is the name of the folders beside images that have all apps' overlays.
const poolsName = "mulligan"

// Owns reports whether the driver made the file at path.
func (p Pools) Owns(path string) bool { return Ours(filepath.Base(path)) && p.Holds(path) }

// Holds reports whether a file is in a folder of the app's layers.
func (p Pools) Holds(path string) bool { return filepath.Base(filepath.Dir(path)) == p.App }

// Foreign reports whether an image of the layer was not made by the driver.
func (p Pools) Foreign(l *Layer) bool {
	for _, f := range l.Files {
		if !p.Owns(f.Path) {
			return true
		}
	}
	return false
}

// Places lists the images of all layers, and the folders in which drivers keep layers. For layers beside the images, that is
// the folder of all apps' pools, which the first capture creates.
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

// Ours reports whether a file has a name of the form that the driver uses.
func Ours(name string) bool {
	for _, pattern := range []string{"L??????-*.qcow2", "L??????-*.qcow2.merge-*", "L??????-*.nvram", "L??????-*.nvram.tmp", "L??????-*.nvram.new", "*.memory"} {
		if ok, _ := filepath.Match(pattern, name); ok {
			return true
		}
	}
	return false
}
