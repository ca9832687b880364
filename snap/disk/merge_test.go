//go:build cgo && libvirt_dlopen

package disk

import (
	"testing"
)

// TestMergeOfDeletedLayers deletes the layers of a merge after it was proposed. It is not done.
func TestMergeOfDeletedLayers(t *testing.T) {
	s, first, second := newOff(t)
	safety := rollback(t, s.d, first)
	if err := s.d.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.d.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	j, err := s.d.merger.nextJob(t.Context(), "test")
	if err != nil || j == nil {
		t.Fatalf("%+v, %v", j, err)
	}
	if err := s.d.Delete(t.Context(), safety); err != nil {
		t.Fatal(err)
	}
	if s.d.tree.Layers[j.Into] != nil {
		t.Fatalf("layer %s is still there", j.Into)
	}
	if err := s.d.merger.merge(t.Context(), "test", *j); err != nil {
		t.Error(err)
	}
	if err := s.d.Maintain(t.Context()); err != nil {
		t.Error(err)
	}
}
