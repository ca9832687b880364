//go:build cgo && libvirt_dlopen

package disk

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"libvirt.org/go/libvirt"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// imageWrecks are what people, and accidents, leave in an image's place.
var imageWrecks = map[string]func(path, seed string) error{
	"text": func(path, seed string) error { return os.WriteFile(path, []byte("oops "+seed), 0o644) },
	"deleted": func(path, seed string) error {
		return errors.Join(os.Remove(path), os.WriteFile(path+".seed", []byte(seed), 0o644))
	},
	"header": func(path, seed string) error {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(fmt.Appendf(nil, "%-200s", seed), 0)
		return errors.Join(err, f.Close())
	},
	"cut off": func(path, seed string) error {
		return errors.Join(os.Truncate(path, 20), os.WriteFile(path+".seed", []byte(seed), 0o644))
	},
	"another file": func(path, seed string) error {
		return errors.Join(os.WriteFile(path+".other", []byte("other "+seed), 0o600), os.Rename(path+".other", path))
	},
}

// wreckable is a domain that is off, whose images can be broken.
type wreckable struct {
	*subject
	kill, steps int
}

// testSalvage breaks a domain's images in all ways that are known.
func testSalvage(t *testing.T) {
	t.Parallel()
	theHost(t)
	snaptest.RunSalvage(t, func(t *testing.T) snaptest.Breakable {
		dir := inMemory(t)
		v := newVM(t, disktest.GuestOptions{SizeMiB: 4, KeepBare: true, NVRAM: true, Dir: dir})
		s := &wreckable{subject: &subject{vm: v, state: filepath.Join(dir, "state")}}
		s.Mutate(t, 0)
		s.Reopen(t)
		return s
	})
}

func (s *wreckable) Reopen(t *testing.T) {
	if s.d != nil {
		_ = s.d.Close() // of which only the connection is let go
	}
	s.d = s.driver(t, s.state, func(c *Config) {
		c.Failpoint = func(string) error {
			s.steps++
			if s.kill > 0 && s.steps >= s.kill {
				return errs.New(errs.Internal, "", "killed")
			}
			return nil
		}
	})
}

func (s *wreckable) KillAt(n int)     { s.kill, s.steps = n, 0 }
func (s *wreckable) Killed() bool     { return s.kill > 0 && s.steps >= s.kill }
func (s *wreckable) Wrecks() []string { return slices.Sorted(maps.Keys(imageWrecks)) }

func (s *wreckable) Wreck(t *testing.T, way string, seed int64) {
	t.Helper()
	for _, image := range s.sources(t, libvirt.DOMAIN_XML_INACTIVE) {
		if err := imageWrecks[way](image, fmt.Sprint(seed)); err != nil {
			t.Fatal(err)
		}
	}
}

// Bytes are those of the images that the domain would read: an overlay that nothing was written to
// stands for what is below it.
func (s *wreckable) Bytes(t *testing.T) string {
	t.Helper()
	h := sha256.New()
	for _, path := range s.sources(t, libvirt.DOMAIN_XML_INACTIVE) {
		for {
			img, f, err := imagefile.OpenImage(path)
			if err != nil {
				break
			}
			empty, err := img.Empty(f)
			f.Close() // only read
			if err != nil || !empty || img.Backing == "" {
				break
			}
			path = img.Backing
		}
		data, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		seed, _ := os.ReadFile(path + ".seed") // of a wreck that leaves none of its own
		fmt.Fprintf(h, "%t %d %s ", err == nil, len(data), seed)
		h.Write(data)
	}
	nvram, err := os.ReadFile(s.NVRAM)
	if err != nil {
		t.Fatal(err)
	}
	h.Write(nvram)
	return hex.EncodeToString(h.Sum(nil))
}

// Damage changes what is kept of a raw snapshot's first image.
func (s *wreckable) Damage(t *testing.T, id snap.SnapshotID) {
	t.Helper()
	f := s.d.tree.Layers[s.d.tree.Snapshots[id].Layer].Files["vda"]
	if err := errors.Join(imagefile.SetImmutable(f.Path, false), os.WriteFile(f.Path, []byte("damage"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// testRescueOfGuest breaks the images of a running guest: a restore to what was before brings
// it back, answering, what lay there is kept, and can be gone back to.
func testRescueOfGuest(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{SizeMiB: 16})
	d := v.driver(t, t.TempDir(), nil)
	v.boot(t)
	v.Do(t, "set zero")
	first := capture(t, d).ID
	ways := slices.Sorted(maps.Keys(imageWrecks)) // testSalvage breaks images in all of them, without a guest
	for _, i := range testkit.Sample(t, "wrecks", len(ways), 1) {
		way := ways[i]
		t.Run(way, func(t *testing.T) {
			v.Do(t, "set one")
			good := capture(t, d).ID
			v.Do(t, "set two")
			path := v.sources(t, libvirt.DOMAIN_XML_INACTIVE)["vda"]
			if err := imageWrecks[way](path, "seed"); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Capture(t.Context(), snap.CaptureRequest{ID: snap.SnapshotID(newID())}); err == nil {
				t.Fatal("what cannot be read was captured")
			}
			if gaps, err := d.FindGaps(t.Context()); err != nil || len(gaps) != 1 || !gaps[0].Blocks {
				t.Errorf("the survey finds %+v, %v", gaps, err)
			}
			if err := d.Unit().Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			lies, _ := os.ReadFile(path) // a guest that runs may still write to it
			raw := v.salvaged(t, d)
			v.restored(t, d, good, raw)
			if kept, err := os.ReadFile(path); way != "deleted" && (err != nil || string(kept) != string(lies)) || way == "deleted" && err == nil {
				t.Errorf("other bytes are kept of %s than lay there: %v", path, err)
			}

			base := capture(t, d).ID // redo, and undo
			v.restored(t, d, raw, base)
			if err := d.Unit().Start(t.Context()); err == nil {
				t.Error("a guest starts from what cannot be read")
			}
			v.restored(t, d, good, v.salvaged(t, d))
			if err := d.Unit().Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			v.WaitReady(t)
			if got := v.Do(t, "get"); got != "one" {
				t.Errorf("the guest says %q", got)
			}
			for _, id := range []snap.SnapshotID{raw, base, good, first} {
				if err := d.Verify(t.Context(), id, snap.Full); err != nil {
					t.Error(err)
				}
			}
			for _, id := range []snap.SnapshotID{raw, base, good} {
				if err := d.Delete(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
			if err := d.Maintain(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// salvaged stops the domain, and keeps the bytes of its disks.
func (v *vm) salvaged(t *testing.T, d *Driver) snap.SnapshotID {
	t.Helper()
	if err := d.Unit().Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := d.Salvage(t.Context(), snap.CaptureRequest{ID: snap.SnapshotID(newID()), Quiesced: true})
	if err != nil {
		t.Fatal(err)
	}
	return s.ID
}

// restored takes the domain, which is off, from base to target.
func (v *vm) restored(t *testing.T, d *Driver, target, base snap.SnapshotID) {
	t.Helper()
	sw, err := d.Prepare(t.Context(), snap.RestoreRequest{ID: snap.RestoreID("op-" + newID()), Target: target, Base: base})
	if err != nil {
		t.Fatal(err)
	}
	if err := sw.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if proof, err := sw.Check(t.Context()); err != nil || !proof.Match {
		t.Fatalf("%+v, %v", proof, err)
	}
	if err := sw.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedBase: what the present disks rest on is damaged. They can be taken to a snapshot
// that does not rest on it, and back.
func TestDamagedBase(t *testing.T) {
	s, first, second := newOff(t)
	path := s.d.tree.Layers[s.d.tree.Snapshots[second].Layer].Files["vda"].Path
	if err := errors.Join(imagefile.SetImmutable(path, false), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	base := capture(t, s.d).ID
	sw, err := s.d.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: first, Base: base})
	if err != nil {
		t.Fatal(err)
	}
	if err := sw.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	proof, err := sw.Check(t.Context())
	if err != nil || !proof.Match || len(proof.Notes) != 1 {
		t.Errorf("%+v, %v", proof, err)
	}
	if err := sw.Undo(t.Context()); err != nil {
		t.Fatal(err)
	}
	if proof, err := sw.Check(t.Context()); err != nil || !proof.Match {
		t.Errorf("undone: %+v, %v", proof, err)
	}
	if err := sw.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.restored(t, s.d, first, base)
}
