//go:build cgo && libvirt_dlopen

package disk

import (
	"slices"
	"testing"

	"mulligan/snap/disk/layertree"
	"mulligan/testkit"
)

// TestDamagedPlaces reads where the disks are while libvirt is away and the record of that is damaged: the tree of the layers has it, too.
func TestDamagedPlaces(t *testing.T) {
	dir := t.TempDir()
	tree := &layertree.Tree{Version: layertree.Version, Domain: "shop", UUID: "u", Head: "L1", Layers: map[layertree.ID]*layertree.Layer{
		"L1": {Files: map[string]*layertree.File{"vda": {Path: "/images/shop.qcow2"}}},
	}}
	if err := tree.Write(dir); err != nil {
		t.Fatal(err)
	}
	places := func() []string {
		t.Helper()
		d, err := New(Config{App: "app-1", Domain: "shop", StateDir: dir, URI: "test:///default"})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		list, err := d.RecordedPlaces()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	d, err := New(Config{App: "app-1", Domain: "shop", StateDir: dir, URI: "test:///default"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.recordPlaces([]string{"/images/shop.qcow2", "/nvram/shop"}); err != nil {
		t.Fatal(err)
	}
	if list := places(); !slices.Contains(list, "/nvram/shop") || !slices.Contains(list, "/images/shop.qcow2") {
		t.Errorf("%q", list)
	}
	testkit.Damage(t, d.placesFile())
	if list := places(); !slices.Contains(list, "/images/shop.qcow2") {
		t.Errorf("the record is damaged: %q", list)
	}
}
