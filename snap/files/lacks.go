package files

import (
	"sync"

	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
)

// lacks returns the warnings of a snapshot with the manifest m: what this process could not restore.
func (d *Driver) lacks(m *manifest.Manifest) (words []string, err error) {
	giver, err := rights.Self()
	if err != nil || giver.Root {
		return nil, err
	}
	g, err := d.lacking.find(m, giver)
	if err != nil || g == nil {
		return nil, err
	}
	list, err := told(d, []*gap{g})
	for _, g := range list {
		words = append(words, g.String())
	}
	return words, err
}

// lacking remembers of folders what this process could not restore in them. A folder's hash stands for all that is below it, so a folder is
// read once, and the cost of a capture follows what changed.
type lacking struct {
	mu   sync.Mutex
	gaps map[snap.Hash]*gap // nil: there is nothing
}

// maxLacking bounds the folders that are remembered. Their hashes take some 20 MB.
const maxLacking = 1 << 18

// find returns what giver could not restore of m, or nil.
func (l *lacking) find(m *manifest.Manifest, giver rights.Giver) (*gap, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gaps == nil || len(l.gaps) > maxLacking {
		l.gaps = map[snap.Hash]*gap{}
	}
	return l.folder(m, m.Root.Hash, giver)
}

// folder returns the gap of the folder with the hash h. Its path is relative to the folder. The caller must hold l.mu.
func (l *lacking) folder(m *manifest.Manifest, h snap.Hash, giver rights.Giver) (*gap, error) {
	if g, known := l.gaps[h]; known {
		return g, nil
	}
	entries, err := m.Folder(h)
	if err != nil {
		return nil, err
	}
	var all *gap
	add := func(path, one string, n int) {
		if all == nil {
			all = &gap{ungivable, one, path, 0}
		}
		all.n += n
	}
	for i := range entries {
		if word := giver.Refuses(&entries[i]); word != "" {
			add(entries[i].Name, word, 1)
		}
	}
	for i := range entries {
		if !entries[i].IsDir() {
			continue
		}
		below, err := l.folder(m, entries[i].Hash, giver)
		if err != nil {
			return nil, err
		}
		if below != nil {
			add(relpath.Join(entries[i].Name, below.first), below.one, below.n)
		}
	}
	l.gaps[h] = all
	return all, nil
}
