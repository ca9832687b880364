package rbd

import (
	"slices"
	"testing"

	"mulligan/snap"
)

// A clone is removed once the domain, switches, snapshots and other clones have no need of it, and not before.
func TestIdle(t *testing.T) {
	at := func(image, name string) point { return point{Image: image, Snap: name} }
	r := &record{
		Head: map[string]string{"vda": "p/present"},
		Images: map[string]*image{
			"p/root":    {},
			"p/a":       {Ours: true, Parent: at("p/root", "s1")},
			"p/b":       {Ours: true, Parent: at("p/a", "s2")},
			"p/present": {Ours: true, Parent: at("p/root", "s1")},
			"p/out":     {Ours: true, Parent: at("p/root", "s1"), Out: true},
			"p/new":     {Ours: true, Parent: at("p/root", "s3")},
		},
		Snapshots: map[snap.SnapshotID]*snapshot{
			"one": {Disks: map[string]point{"vda": at("p/a", "s2")}},
			"two": {Disks: map[string]point{"vda": at("p/root", "s3")}},
		},
		Switches: map[snap.RestoreID]*plan{"op": {
			To: snapshot{Disks: map[string]point{"vda": at("p/root", "s3")}}, From: snapshot{Disks: map[string]point{"vda": at("p/a", "s2")}},
			Old: map[string]string{"vda": "p/present"}, New: map[string]string{"vda": "p/new"},
		}},
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if got := r.idle(); !slices.Equal(got, want) {
			t.Errorf("%s: %v can be removed, want %v", what, got, want)
		}
	}
	expect("at first", "p/b")
	delete(r.Images, "p/b")
	remove(r, "one")
	remove(r, "two")
	if len(r.Doomed) > 0 {
		t.Errorf("a switch needs what is to be removed: %v", r.Doomed)
	}
	expect("a switch needs them")
	again := *r.Switches["op"]
	again.From = snapshot{Disks: map[string]point{"vda": at("p/present", "s4")}}
	r.replace("op", &again)
	if len(r.Doomed) != 1 || r.Doomed[0].at() != "p/a@s2" {
		t.Errorf("the former base goes with the former preparation, and not %v", r.Doomed)
	}
	forget(r, "op")
	if len(r.Doomed) != 3 {
		t.Errorf("two more snapshots go with the switch: %v", r.Doomed)
	}
	expect("the switch is gone, and a snapshot of a is still there", "p/new")
	r.Doomed = nil
	expect("nothing has a snapshot", "p/a", "p/new")
}

func TestOurs(t *testing.T) {
	d := &Driver{cfg: Config{App: "app-1"}}
	r := &record{}
	for range 3 {
		if name := d.name(r); !d.ours(name) || !d.ours(name+"-vda") {
			t.Errorf("%s is the driver's", name)
		}
	}
	for _, name := range []string{"mulligan-app-1", "mulligan-app-1-2-000001-abcdef", "mulligan-app-12-000001-abcdef", "disk-1", "mulligan-app-1-000001-abcdef-vda-2"} {
		if d.ours(name) {
			t.Errorf("%s is not the driver's", name)
		}
	}
}
