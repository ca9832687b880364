package layertree

import (
	"cmp"
	"slices"
)

// job is one merge: what only from holds goes into the layer above it, which
// then rests on parent. Without a from the layers in between stay, for others.
type Job struct{ From, Into, Parent ID }

// merges lists the layers that nobody names and that could go into the one
// layer that rests on each. What is not frozen is never touched; nor are the
// images that the domain came with.
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

// linked lists the disks whose images in j.into rest on those of j.from, or, without
// one, of its present parent: what a merge is about.
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

// under is the image that a disk's image rests on once j is done.
func (t *Tree) Under(j Job, dev string) string {
	if j.From == "" {
		return t.Layers[j.Parent].Files[dev].Path
	}
	path, _ := t.Backing(t.Layers[j.From], dev)
	return path
}

// put takes from out of the tree, if there is one: into rests on parent then, and where
// single images of from rested on others, its own do.
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

// depthThrough is the depth of the deepest layer that rests on id.
func (t *Tree) depthThrough(id ID) int {
	deepest := t.Depth(id)
	for _, c := range t.children(id) {
		deepest = max(deepest, t.depthThrough(c))
	}
	return deepest
}

// shortcut proposes to put the newest frozen layer below the head on one that
// lies much deeper, where too many images lie upon each other.
func (t *Tree) Shortcut(limit int) *Job {
	head := t.Layers[t.Head]
	if head == nil || t.Depth(t.Head) <= limit {
		return nil
	}
	into := head.Parent
	chain := t.Chain(into)
	if l := t.Layers[into]; l == nil || !l.Frozen || l.Raw {
		return nil
	}
	for _, id := range chain[1:] {
		if t.Depth(id) <= max(limit/2, t.Depth(chain[len(chain)-1])) {
			if t.Layers[into].Parent == id || !t.plain(into, id) {
				return nil // it is there already, or cannot be put there
			}
			return &Job{"", into, id}
		}
	}
	return nil
}

// plain reports whether between two layers of a chain every image rests on its layer's
// parent's.
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

// fits reports whether a merge that was prepared without the lock is still right.
func (t *Tree) Fits(j Job) bool {
	into := t.Layers[j.Into]
	if t.Intent != nil || into == nil || t.Layers[j.Parent] == nil {
		return false
	}
	if j.From == "" {
		return slices.Contains(t.Chain(into.Parent), j.Parent)
	}
	return into.Parent == j.From && !t.named()[j.From] && len(t.children(j.From)) == 1 && t.Layers[j.From].Parent == j.Parent
}

// under is what a merged image rests on. An older mulligan did not write that down: its
// layers had no images that did not rest on their parents'.
func (in *Intent) Under(t *Tree, dev string) string {
	if path, ok := in.Rests[dev]; ok {
		return path
	}
	return t.Layers[in.Parent].Files[dev].Path
}
