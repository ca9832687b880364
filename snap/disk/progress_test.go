//go:build cgo && libvirt_dlopen

package disk

import (
	"slices"
	"strings"
	"testing"

	"mulligan/snap"
)

// The first restore after the first capture reads the whole disk, and says so before it begins, and
// while it does; the next one has nothing to read.
func TestFirstRestoreTellsItsProgress(t *testing.T) {
	s, first, second := newOff(t)
	var said []string
	ctx := snap.WithProgress(t.Context(), func(words string) { said = append(said, words) })
	for round, most := range []int{100, 0} {
		said = nil
		sw, err := s.d.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: first, Base: second})
		if err != nil {
			t.Fatal(err)
		}
		if err := sw.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(said) > most {
			t.Errorf("round %d: %q", round, said)
		}
		if round > 0 {
			continue
		}
		whole := slices.IndexFunc(said, func(w string) bool { // "…: N of N"
			_, of, _ := strings.Cut(w, ": ")
			read, all, _ := strings.Cut(of, " of ")
			return read == all
		})
		if len(said) < 2 || !strings.Contains(said[0], "0 B of ") || whole != len(said)-1 {
			t.Errorf("it said %q", said)
		}
	}
}
