package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// smallSegments have a collection free nearly all that is dead: it leaves those segments
// that are being written alone until half of what they hold is dead.
const smallSegments = 8 << 10

// subject puts the driver through the suite that all drivers pass.
type subject struct {
	*site
	t *testing.T
}

func TestConformance(t *testing.T) {
	snaptest.Run(t, func(t *testing.T) snaptest.Subject {
		s := &subject{newSite(t), t}
		s.casOptions.SegmentBytes = smallSegments
		s.open(t)
		write(t, s.dir+"/always/here", "from the start")
		return s
	})
}

func (s *subject) Driver() snap.Driver { return s.site.Driver }

func (s *subject) Reopen(t *testing.T) { s.open(t) }

// Slow has a short run take fewer of the suite's steps, which are many files each.
func (s *subject) Slow() bool { return !long() }

func (s *subject) Fingerprint(t *testing.T) string { return strings.Join(listing(t, s.dir), "\n") }

func (s *subject) Mutate(t *testing.T, seed int64) {
	r := testkit.Rand(t)
	big := make([]byte, 32<<10)
	for i := range big {
		big[i] = byte(r.Uint32())
	}
	write(t, s.dir+"/seed", fmt.Sprint(seed)+string(big[:8<<10]))
	write(t, fmt.Sprintf("%s/new/%d", s.dir, seed), string(big))
	must(t, os.MkdirAll(s.dir+"/wild", 0o755))
	scramble(t, r, s.dir+"/wild", 5)
}

// Stored is what the store takes on disk once it is collected.
func (s *subject) Stored(t *testing.T) int64 {
	_, err := s.cas.Collect(context.Background())
	must(t, err)
	return s.cas.DiskUsage()
}

// Damage flips a byte of the content that each Mutate writes anew.
func (s *subject) Damage(t *testing.T, id snap.SnapshotID) {
	m, err := s.stored(t.Context(), "test", id)
	must(t, err)
	want, err := s.cas.Get(mustFind(t, m, "seed").Hash)
	must(t, err)
	s.overwrite(t, want[:100], 50, []byte{^want[50]})
}

// overwrite writes into the stored object that has these bytes as they are, at a place counted from the first of them.
func (s *site) overwrite(t *testing.T, bytes []byte, at int, by []byte) {
	t.Helper()
	segments, err := filepath.Glob(s.store + "/*.seg")
	must(t, err)
	for _, p := range segments {
		b, err := os.ReadFile(p)
		must(t, err)
		if i := strings.Index(string(b), string(bytes)); i >= 0 {
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt(by, int64(i+at))
			must(t, err)
			must(t, f.Close())
			return
		}
	}
	t.Fatal("nothing found to damage")
}

func mustFind(t *testing.T, m *manifest.Manifest, path string) *manifest.Entry {
	e, err := m.Find(path)
	must(t, err)
	if e == nil {
		t.Fatalf("no %s in the manifest", path)
	}
	return e
}
