//go:build cgo && libvirt_dlopen

package disk

import (
	"slices"
	"testing"

	"mulligan/snap"
)

// The first restore after the first capture reads the whole disk, and says so before it begins, and
// while it does; the next one has nothing to read.
func TestFirstRestoreTellsItsProgress(t *testing.T) {
	s, first, second := newOff(t)
	var said []snap.Work
	ctx := snap.WithProgress(t.Context(), func(w snap.Work) { said = append(said, w) })
	for round := range 2 {
		said = nil
		sw, err := s.d.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: first, Base: second})
		if err != nil {
			t.Fatal(err)
		}
		if err := sw.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if round > 0 {
			if len(said) > 0 {
				t.Errorf("the second time it said %+v", said)
			}
			continue
		}
		whole := slices.IndexFunc(said, func(w snap.Work) bool { return w.Done == w.Total })
		if len(said) < 2 || said[0].Done != 0 || said[0].Total == 0 || whole != len(said)-1 {
			t.Errorf("it said %+v", said)
		}
	}
}
