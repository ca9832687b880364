package remote

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sort"

	"mulligan/errs"
	"mulligan/snap"
)

// found are all objects of which a ledger knows, and which of them are needed.
type found struct {
	all    []copied // in the order of the packs, and in a pack in that of its index
	starts []int    // of each pack in all, and the end
	order  []int32  // numbers in all, by hash; of copies of one object the one that counts is the last
}

// copied is an object in one of the packs.
type copied struct {
	hash snap.Hash
	n    int
	node int    // its number among the nodes of its pack; -1: it is none
	refs []byte // of a node: the first bytes of each
	need bool   // some checkpoint needs the object
	here bool   // this copy is the one that counts
	bad  bool   // the pack is damaged
	// named says that the pack is not damaged, and that an entry names it: whoever reads the log finds this copy.
	named bool
	// Of objects that begin alike, the first notes whether all of them are whole, once somebody asked.
	asked, whole bool
}

// find returns the objects of all packs, with those marked that are below the roots.
func (l *ledger) find(roots [][]byte) (*found, error) {
	f := &found{}
	for i := range l.Packs {
		f.starts = append(f.starts, len(f.all))
		if err := f.add(&l.Packs[i], i < len(l.Packs)-l.Pending); err != nil {
			return nil, err
		}
	}
	f.starts = append(f.starts, len(f.all))
	for i := range f.all {
		f.order = append(f.order, int32(i))
	}
	slices.SortFunc(f.order, func(a, b int32) int {
		if c := bytes.Compare(f.all[a].hash[:], f.all[b].hash[:]); c != 0 {
			return c
		}
		if f.all[a].bad != f.all[b].bad {
			if f.all[a].bad {
				return -1
			}
			return 1
		}
		return int(a - b)
	})
	for i, at := range f.order {
		f.all[at].here = i+1 == len(f.order) || f.all[f.order[i+1]].hash != f.all[at].hash
	}
	return f, f.mark(roots)
}

// add adds the objects of a pack. named says whether an entry names it.
func (f *found) add(k *noted, named bool) error {
	list, err := k.objects()
	if err != nil {
		return err
	}
	refs, nodes := k.Refs, 0
	for _, o := range list {
		c := copied{hash: o.hash, n: o.n, node: -1, bad: k.Bad, named: named && !k.Bad}
		if o.node {
			n, used := binary.Uvarint(refs)
			if used <= 0 || n > uint64(len(refs)-used)/shortLen {
				return errs.New(errs.Unsupported, "", "this host's notes of the remote do not say what each checkpoint needs: an earlier version began them").
					WithHint("`mulligan push --take-over` begins them anew, and sends everything again")
			}
			c.node, c.refs = nodes, refs[used:used+int(n)*shortLen]
			refs = refs[used+len(c.refs):]
			nodes++
		}
		f.all = append(f.all, c)
	}
	return nil
}

// mark marks what is below the roots.
func (f *found) mark(roots [][]byte) error {
	todo := slices.Clone(roots)
	for len(todo) > 0 {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if len(p) < shortLen {
			return errs.New(errs.Corrupt, "", "this host's notes of the remote are damaged").WithHint("`mulligan push --take-over` begins them anew, and sends everything again")
		}
		if len(p) == len(snap.Hash{}) && snap.Hash(p).IsZero() {
			continue
		}
		alike := f.alike(p[:shortLen])
		for _, at := range alike {
			c := &f.all[at]
			if c.need {
				continue
			}
			c.need = true
			for refs := c.refs; len(refs) > 0; refs = refs[shortLen:] {
				todo = append(todo, refs[:shortLen])
			}
		}
		if len(alike) == 0 {
			return errs.New(errs.Corrupt, "", "this host's notes of the remote lack an object that a checkpoint there needs: nothing was removed").
				WithHint("`mulligan push --take-over` begins the notes anew, and sends everything again")
		}
	}
	return nil
}

// alike returns the numbers of the objects whose hashes begin so, in the order of their hashes.
func (f *found) alike(short []byte) []int32 {
	from := sort.Search(len(f.order), func(i int) bool { return bytes.Compare(f.all[f.order[i]].hash[:shortLen], short) >= 0 })
	n := 0
	for from+n < len(f.order) && bytes.Equal(f.all[f.order[from+n]].hash[:shortLen], short) {
		n++
	}
	return f.order[from : from+n]
}

// whole reports whether an object, of which p is at least the beginning of its hash, is there with all below it, in packs that are not damaged and that an
// entry names. Of objects that begin alike, all must be there.
func (f *found) whole(p []byte) bool {
	if len(p) == len(snap.Hash{}) && snap.Hash(p).IsZero() {
		return true
	}
	if len(p) < shortLen {
		return false
	}
	alike := f.alike(p[:shortLen])
	if len(alike) == 0 {
		return false
	}
	first := &f.all[alike[0]]
	if first.asked {
		return first.whole
	}
	first.asked = true
	there := false // a copy of the object
	for _, at := range alike {
		c := &f.all[at]
		there = there || c.named
		if !c.here {
			continue // more copies follow
		}
		if !there {
			return false
		}
		for refs := c.refs; len(refs) > 0; refs = refs[shortLen:] {
			if !f.whole(refs[:shortLen]) {
				return false
			}
		}
		there = false
	}
	first.whole = true
	return true
}

// pack returns the objects of a pack.
func (f *found) pack(i int) []copied { return f.all[f.starts[i]:f.starts[i+1]] }

// use returns how many bytes of a pack are needed, and how many it has, before compression.
func (f *found) use(pack int) (used, all int) {
	for _, c := range f.pack(pack) {
		all += c.n
		if c.need && c.here {
			used += max(c.n, 1) // the empty object is needed, too
		}
	}
	return used, all
}

// readable reports whether all of a pack that is needed can be read here, and be relied upon as it is noted.
func (f *found) readable(pack int, was []byte, from Objects) bool {
	for _, c := range f.pack(pack) {
		if !c.need || !c.here {
			continue
		}
		if c.node >= 0 && dead(was, c.node) {
			return false
		}
		if _, _, _, err := from.Object(c.hash); err != nil {
			return false // the checkpoint is not here any more: the pack stays
		}
	}
	return true
}

// send has what is needed of packs sent.
func (f *found) send(s *sender, packs []int) error {
	for _, i := range packs {
		for _, c := range f.pack(i) {
			if !c.need || !c.here {
				continue
			}
			if err := s.ctx.Err(); err != nil {
				return errs.Wrap(errs.Unavailable, "", err)
			}
			data, refs, node, err := s.from.Object(c.hash)
			if err == nil {
				err = s.take(c.hash, data, refs, node)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
