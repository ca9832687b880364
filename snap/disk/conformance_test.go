//go:build cgo && libvirt_dlopen

package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"libvirt.org/go/libvirt"

	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

func TestConformance(t *testing.T) {
	theHost(t)
	snaptest.RunSlow(t, func(t *testing.T) snaptest.Subject {
		dir := inMemory(t)
		v := newVM(t, disktest.GuestOptions{SizeMiB: 4, KeepBare: true, NVRAM: true, Dir: dir})
		s := &subject{vm: v, state: filepath.Join(dir, "state")}
		s.Mutate(t, 0)
		s.Reopen(t)
		return s
	})
}

// inMemory is a folder that a sync costs nothing in.
func inMemory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "mdt-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec.Command("chattr", "-R", "-i", dir).Run() // where the filesystem knows the flag
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// subject is a domain that is off: its disks are written to by qemu-io.
type subject struct {
	*vm
	state string
	d     *Driver
}

// Layered: the domain's own images rest on the snapshots'.
func (s *subject) Layered() {}

// Slow: each step of it starts programs.
func (s *subject) Slow() bool { return !long }

func (s *subject) Driver() snap.Driver { return s.d }

func (s *subject) Reopen(t *testing.T) {
	if s.d != nil {
		_ = s.d.Close() // of which only the connection is let go
	}
	s.d = s.driver(t, s.state, nil)
}

// Mutate overwrites a few clusters.
func (s *subject) Mutate(t *testing.T, seed int64) {
	random := testkit.Rand(t)
	pattern := filepath.Join(t.TempDir(), "pattern")
	data := testkit.Bytes(t, 64<<10)
	if err := os.WriteFile(pattern, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, image := range s.sources(t, libvirt.DOMAIN_XML_INACTIVE) {
		args := []string{"-f", "qcow2", "-t", "writeback"}
		for range 1 + random.IntN(3) {
			args = append(args, "-c", fmt.Sprintf("write -q -s %s %dk 64k", pattern, 64*random.IntN(64)))
		}
		args = append(args, "-c", fmt.Sprintf("write -q -s %s 0 64k", pattern))
		if random.IntN(3) == 0 {
			args = append(args, "-c", fmt.Sprintf("discard -q %dk 64k", 64+64*random.IntN(63)))
		}
		if out, err := exec.Command("qemu-io", append(args, image)...).CombinedOutput(); err != nil {
			t.Fatalf("qemu-io: %v: %s", err, out)
		}
	}
	if seed%2 == 0 {
		if err := os.WriteFile(s.NVRAM, data[:1024], 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *subject) Fingerprint(t *testing.T) string {
	h := sha256.New()
	for _, image := range s.sources(t, libvirt.DOMAIN_XML_INACTIVE) {
		content := map[int64][]byte{}
		size, err := readContent(image, content)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(h, "disk of", size)
		for _, at := range slices.Sorted(maps.Keys(content)) {
			if data := content[at]; !bytes.Equal(data, zeros[:len(data)]) {
				fmt.Fprintln(h, at)
				h.Write(data)
			}
		}
	}
	nvram, err := os.ReadFile(s.NVRAM)
	if err != nil {
		t.Fatal(err)
	}
	h.Write(nvram)
	return hex.EncodeToString(h.Sum(nil))
}

var zeros [64 << 10]byte

// readContent puts into content, by their offsets, the clusters that a guest
// reads from a small qcow2 image and that content does not have yet; what is
// nowhere reads as zeros. It returns the disk's size in bytes. The suite asks so
// often that starting qemu-img for it would take most of the time, as would
// whole images in memory.
func readContent(path string, content map[int64][]byte) (size int64, err error) {
	img, f, err := imagefile.OpenImage(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if img.Cluster != int64(len(zeros)) {
		return 0, fmt.Errorf("%s has clusters of %d bytes, its disk's other images may have others", path, img.Cluster)
	}
	l1, err := imagefile.ReadTable(f, img.L1At, img.L1Size*8)
	if err != nil {
		return 0, err
	}
	for i, e := range l1 {
		if e&imagefile.OffsetMask == 0 {
			continue
		}
		l2, err := imagefile.ReadTable(f, int64(e&imagefile.OffsetMask), img.Cluster)
		if err != nil {
			return 0, err
		}
		for j, e := range l2 {
			at := int64(i)*img.Span() + int64(j)*img.Cluster
			if at >= img.Size {
				break
			}
			if _, ok := content[at]; ok || e&(imagefile.OffsetMask|imagefile.CompressedFlag|1) == 0 {
				continue
			}
			if e&imagefile.CompressedFlag != 0 {
				return 0, fmt.Errorf("%s has compressed clusters", path)
			}
			data := make([]byte, min(img.Cluster, img.Size-at))
			if e&1 == 0 { // else it reads as zeros
				if _, err := f.ReadAt(data, int64(e&imagefile.OffsetMask)); err != nil {
					return 0, err
				}
			}
			content[at] = data
		}
	}
	if img.Backing != "" {
		if _, err := readContent(img.Backing, content); err != nil {
			return 0, err
		}
	}
	return img.Size, nil
}

func (s *subject) Damage(t *testing.T, id snap.SnapshotID) {
	path := s.d.tree.Layers[s.d.tree.Snapshots[id].Layer].Files["vda"].Path
	if err := imagefile.SetImmutable(path, false); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const at = 60000 // in the header's cluster, where QEMU reads nothing: the live state rests on this image too
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func (s *subject) Stored(t *testing.T) (n int64) {
	if err := s.d.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, l := range s.d.tree.Layers {
		if id != s.d.tree.Head {
			for _, f := range l.All() {
				n += imagefile.Blocks(f.Path)
			}
		}
	}
	return n
}
