package disk

import (
	"cmp"
	"slices"
)

// job is one merge: what only from holds goes into the layer above it, which
// then rests on parent. Without a from the layers in between stay, for others.
type job struct{ from, into, parent layerID }

// merges lists the layers that nobody names and that could go into the one
// layer that rests on each. What is not frozen is never touched; nor are the
// images that the domain came with.
func (t *tree) merges(foreign func(*layer) bool) (list []job) {
	named := t.named()
	for id, l := range t.Layers {
		if named[id] || !l.Frozen || l.Raw || l.Parent == "" || foreign(l) {
			continue
		}
		children := t.children(id)
		if len(children) == 1 && t.Layers[children[0]].Frozen {
			list = append(list, job{id, children[0], l.Parent})
		}
	}
	slices.SortFunc(list, func(a, b job) int { return cmpID(a.from, b.from) })
	return list
}

// linked lists the disks whose images in j.into rest on those of j.from, or, without
// one, of its present parent: what a merge is about.
func (t *tree) linked(j job) (list []string) {
	into := t.Layers[j.into]
	from := t.Layers[cmp.Or(j.from, into.Parent)]
	for _, dev := range into.devices() {
		if _, own := into.Rests[dev]; !own && from.Files[dev] != nil {
			list = append(list, dev)
		}
	}
	return list
}

// under is the image that a disk's image rests on once j is done.
func (t *tree) under(j job, dev string) string {
	if j.from == "" {
		return t.Layers[j.parent].Files[dev].Path
	}
	path, _ := t.backing(t.Layers[j.from], dev)
	return path
}

// put takes from out of the tree, if there is one: into rests on parent then, and where
// single images of from rested on others, its own do.
func (t *tree) put(into, from, parent layerID) {
	l := t.Layers[into]
	gone := t.Layers[from]
	if gone != nil {
		for _, dev := range t.linked(job{from: from, into: into}) {
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

func cmpID(a, b layerID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// depthThrough is the depth of the deepest layer that rests on id.
func (t *tree) depthThrough(id layerID) int {
	deepest := t.depth(id)
	for _, c := range t.children(id) {
		deepest = max(deepest, t.depthThrough(c))
	}
	return deepest
}

// shortcut proposes to put the newest frozen layer below the head on one that
// lies much deeper, where too many images lie upon each other.
func (t *tree) shortcut(limit int) *job {
	head := t.Layers[t.Head]
	if head == nil || t.depth(t.Head) <= limit {
		return nil
	}
	into := head.Parent
	chain := t.chain(into)
	if l := t.Layers[into]; l == nil || !l.Frozen || l.Raw {
		return nil
	}
	for _, id := range chain[1:] {
		if t.depth(id) <= max(limit/2, t.depth(chain[len(chain)-1])) {
			if t.Layers[into].Parent == id || !t.plain(into, id) {
				return nil // it is there already, or cannot be put there
			}
			return &job{"", into, id}
		}
	}
	return nil
}

// plain reports whether between two layers of a chain every image rests on its layer's
// parent's.
func (t *tree) plain(from, to layerID) bool {
	for id := from; id != to; id = t.Layers[id].Parent {
		l := t.Layers[id]
		if l.Raw || len(l.Rests) > 0 || !slices.Equal(l.devices(), t.Layers[to].devices()) {
			return false
		}
	}
	return true
}

func (t *tree) sortedLayers() (list []layerID) {
	for id := range t.Layers {
		list = append(list, id)
	}
	slices.SortFunc(list, cmpID)
	return list
}

// fits reports whether a merge that was prepared without the lock is still right.
func (t *tree) fits(j job) bool {
	into := t.Layers[j.into]
	if t.Intent != nil || into == nil || t.Layers[j.parent] == nil {
		return false
	}
	if j.from == "" {
		return slices.Contains(t.chain(into.Parent), j.parent)
	}
	return into.Parent == j.from && !t.named()[j.from] && len(t.children(j.from)) == 1 && t.Layers[j.from].Parent == j.parent
}

// under is what a merged image rests on. An older mulligan did not write that down: its
// layers had no images that did not rest on their parents'.
func (in *intent) under(t *tree, dev string) string {
	if path, ok := in.Rests[dev]; ok {
		return path
	}
	return t.Layers[in.Parent].Files[dev].Path
}
