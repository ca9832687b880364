package layertree

import (
	"cmp"
	"slices"
)

// Job is a merge: the contents that only the layer from has are written into the layer above it, whose parent becomes parent.
// Without from, the layers in between stay, because others need them.
type Job struct{ From, Into, Parent ID }

// merges lists the layers that nothing names and that have exactly one layer above, into which they can be merged. Layers that
// are not frozen and the domain's original images are never merged.
func (t *Tree) merges(foreign func(*Layer) bool) (list []Job) {
	named := t.named()
	for id, l := range t.Layers {
		if named[id] || !l.Frozen || l.Raw || l.Parent == "" || foreign(l) {
			continue
		}
		children := t.children(id)
		if len(children) == 1 && t.Layers[children[0]].Frozen {
			list = append(list, Job{id, children[0], l.Parent})
		}
	}
	slices.SortFunc(list, func(a, b Job) int { return cmpID(a.From, b.From) })
	return list
}

// Linked lists the disks that the merge concerns: those whose images in j.into have a backing file in j.from, or, without from,
// in the present parent.
func (t *Tree) Linked(j Job) (list []string) {
	into := t.Layers[j.Into]
	from := t.Layers[cmp.Or(j.From, into.Parent)]
	for _, dev := range into.Devices() {
		if _, own := into.Rests[dev]; !own && from.Files[dev] != nil {
			list = append(list, dev)
		}
	}
	return list
}

// Under returns the backing file of a disk's image after j.
func (t *Tree) Under(j Job, dev string) string {
	if j.From == "" {
		return t.Layers[j.Parent].Files[dev].Path
	}
	path, _ := t.Backing(t.Layers[j.From], dev)
	return path
}

// Brought lists the images of a disk whose contents the merge writes into the disk's image of j.Into.
func (t *Tree) Brought(j Job, dev string) (list []string) {
	for id := t.Layers[j.Into].Parent; id != j.Parent; id = t.Layers[id].Parent {
		list = append(list, t.Layers[id].Files[dev].Path)
	}
	return list
}

// Put applies the merge to the tree: it removes from, if there is one, and sets the parent of into. Exceptions for single
// images (Rests) move from from to into.
func (t *Tree) Put(into, from, parent ID) {
	l := t.Layers[into]
	gone := t.Layers[from]
	if gone != nil {
		for _, dev := range t.Linked(Job{From: from, Into: into}) {
			if path, ok := gone.Rests[dev]; ok {
				if l.Rests == nil {
					l.Rests = map[string]string{}
				}
				l.Rests[dev] = path
			}
		}
	}
	l.Parent = parent
	delete(t.Layers, from)
}

func cmpID(a, b ID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// depthThrough returns the depth of the deepest layer above id.
func (t *Tree) depthThrough(id ID) int {
	deepest := t.Depth(id)
	for _, c := range t.children(id) {
		deepest = max(deepest, t.depthThrough(c))
	}
	return deepest
}

// Shortcut proposes to give the newest frozen layer below the head a parent that is much deeper, if the backing chain is too
// long.
func (t *Tree) Shortcut(limit int) *Job {
	head := t.Layers[t.Head]
	if head == nil || t.Depth(t.Head) <= limit {
		return nil
	}
	into := head.Parent
	chain := t.Chain(into)
	if l := t.Layers[into]; l == nil || !l.Frozen || l.Raw || t.lent()[into] {
		return nil
	}
	for _, id := range chain[1:] {
		if t.Depth(id) <= max(limit/2, t.Depth(chain[len(chain)-1])) {
			if t.Layers[into].Parent == id || !t.plain(into, id) {
				return nil // it has this parent already, or cannot get it
			}
			return &Job{"", into, id}
		}
	}
	return nil
}

// plain reports whether every image of the layers between two layers of a chain has its backing file in the layer's parent.
func (t *Tree) plain(from, to ID) bool {
	for id := from; id != to; id = t.Layers[id].Parent {
		l := t.Layers[id]
		if l.Raw || len(l.Rests) > 0 || !slices.Equal(l.Devices(), t.Layers[to].Devices()) {
			return false
		}
	}
	return true
}

func (t *Tree) SortedLayers() (list []ID) {
	for id := range t.Layers {
		list = append(list, id)
	}
	slices.SortFunc(list, cmpID)
	return list
}

// Fits reports whether a merge that was proposed, or prepared without the lock, is still valid.
func (t *Tree) Fits(j Job) bool {
	if t == nil {
		return false
	}
	into := t.Layers[j.Into]
	if t.Intent != nil || into == nil || t.Layers[j.Parent] == nil {
		return false
	}
	if t.lent()[j.Into] {
		return false
	}
	if j.From == "" {
		return slices.Contains(t.Chain(into.Parent), j.Parent)
	}
	return into.Parent == j.From && !t.named()[j.From] && len(t.children(j.From)) == 1 && t.Layers[j.From].Parent == j.Parent
}

// Under returns the backing file of a merged image. An older mulligan did not record it, because all its images had their
// backing files in the parent layer.
func (in *Intent) Under(t *Tree, dev string) string {
	if path, ok := in.Rests[dev]; ok {
		return path
	}
	return t.Layers[in.Parent].Files[dev].Path
}
