package files

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
)

// TestImportOfTooMuch: a manifest from elsewhere, which can name one folder or file as often as it likes, is imported up to the limits of a
// workspace and refused beyond them.
func TestImportOfTooMuch(t *testing.T) {
	s := newSite(t, func(c *Config) { c.MaxFiles, c.MaxBytes = 1_000_000, 1<<30 })
	b := s.cas.Begin()
	defer b.Discard()
	content, err := b.Blob([]byte("content"))
	must(t, err)
	full := make(map[int64]snap.Hash)
	for i := range int64(256) {
		full[i] = content
	}
	file := manifest.Entry{Mode: unix.S_IFREG | 0o644, Size: 7, Hash: content}
	large := func(size int64, pieces map[int64]snap.Hash) manifest.Entry {
		h, err := b.Node(manifest.EncodeLarge(size, pieces))
		must(t, err)
		return manifest.Entry{Mode: unix.S_IFREG | 0o644, Size: size, Hash: h}
	}
	// tree returns a folder of n folders, of n folders and so on, at whose ends is e.
	tree := func(e manifest.Entry, levels, n int, name string) manifest.Entry {
		for range levels {
			list := make([]*manifest.Entry, n)
			for i := range list {
				k := e
				k.Name = fmt.Sprintf("%s%06d", name, i)
				list[i] = &k
			}
			h, err := b.Node(manifest.EncodeNode(manifest.SortFolder, list))
			must(t, err)
			e = manifest.Entry{Mode: unix.S_IFDIR | 0o755, Hash: h}
		}
		return e
	}
	// pair returns a folder of two entries, of which the first is "aaa".
	pair := func(first, second manifest.Entry) manifest.Entry {
		first.Name, second.Name = "aaa", "bbb"
		h, err := b.Node(manifest.EncodeNode(manifest.SortFolder, []*manifest.Entry{&first, &second}))
		must(t, err)
		return manifest.Entry{Mode: unix.S_IFDIR | 0o755, Hash: h}
	}
	asFile := func(e manifest.Entry) manifest.Entry { // describes an object as a file of little more than a chunk
		return manifest.Entry{Mode: unix.S_IFREG | 0o644, Size: cas.ChunkSize + 1, Hash: e.Hash}
	}
	name := strings.Repeat("n", 249)
	for i, c := range []struct {
		what    string
		root    manifest.Entry
		refused string
	}{
		{"999,999 entries", tree(tree(file, 1, 8, ""), 1, 111_111, ""), ""},
		{"a million and eight", tree(tree(file, 1, 8, ""), 1, 111_112, ""), "1000000 files"},
		{"8 levels of 100", tree(file, 8, 100, ""), "1000000 files"},
		{"1 GiB", tree(large(256<<20, full), 1, 4, ""), ""},
		{"more than 1 GiB", tree(large(256<<20, full), 1, 5, ""), "1073741824 bytes"},
		{"holes of 500 GiB", tree(large(100<<30, nil), 1, 5, ""), ""},
		{"a path of 32,767 bytes", tree(file, 128, 1, name), ""},
		{"one of 33,023", tree(file, 129, 1, name), "path"},
		{"one of 32,769, in folders that are elsewhere too", pair(tree(file, 127, 1, name), tree(tree(file, 127, 1, name), 1, 1, name[:247])), "path"},
		{"8 levels of 100, first as a file", pair(asFile(tree(file, 8, 100, "")), tree(file, 8, 100, "")), "1000000 files"},
		{"more than 1 GiB, first with another size", pair(asFile(large(256<<20, full)), tree(large(256<<20, full), 1, 5, "")), "1073741824 bytes"},
	} {
		h, err := b.Node(manifest.EncodeNode(manifest.SortTop, []*manifest.Entry{&c.root}))
		must(t, err)
		_, err = s.Import(t.Context(), snap.Portable{Driver: "files", Object: h, Meta: []byte("{}")}, snap.SnapshotID(fmt.Sprint("fs-", i)))
		if c.refused == "" && err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if c.refused != "" && (errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), c.refused) || errs.HintOf(err) == "") {
			t.Errorf("%s: %v (%s), which is not the refusal for %q", c.what, err, errs.HintOf(err), c.refused)
		}
	}
}
