//go:build cgo && libvirt_dlopen

package rbd

import (
	"context"
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
	"mulligan/snap/disk/virt"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// TestLongConformance is the suite with a real Ceph, which takes seconds for each step.
func TestLongConformance(t *testing.T) {
	testkit.NeedLong(t)
	t.Parallel()
	snaptest.RunSlow(t, func(t *testing.T) snaptest.Subject { return newSubject(t) })
}

// subject is a domain that is off: its disks are written to by qemu-io.
type subject struct {
	*vm
	state string
	d     *Driver
}

func newSubject(t *testing.T) *subject {
	s := &subject{vm: newVM(t, 1, 16, false, disktest.GuestOptions{NVRAM: true}), state: t.TempDir()}
	s.Mutate(t, 0)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		s.d = s.driver(t, s.state, nil)
		if err := s.d.Sweep(context.Background(), snap.Gone{}); err != nil {
			t.Fatal(err)
		}
		s.litter(t, s.d)
	})
	s.Reopen(t)
	return s
}

// survey inspects the persistent definition.
func survey(v *vm, t testing.TB) (s virt.Survey, text string, err error) {
	if text, err = v.lookup(t).GetXMLDesc(libvirt.DOMAIN_XML_INACTIVE); err == nil {
		s, err = virt.Inspect("test", text)
	}
	return s, text, err
}

// Layered: the domain's images rest on the snapshots.
func (s *subject) Layered() {}

// Slow: each step of it starts programs that connect to Ceph.
func (s *subject) Slow() bool { return true }

func (s *subject) Driver() snap.Driver { return s.d }

func (s *subject) Reopen(t *testing.T) {
	if s.d != nil {
		_ = s.d.Close() // of which only the connection is let go
	}
	s.d = s.driver(t, s.state, nil)
}

// Mutate overwrites a few parts of each disk.
func (s *subject) Mutate(t *testing.T, seed int64) {
	random := testkit.Rand(t)
	pattern := filepath.Join(t.TempDir(), "pattern")
	data := testkit.Bytes(t, 64<<10)
	if err := os.WriteFile(pattern, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, image := range s.head(t) {
		args := []string{"-f", "raw", "-t", "writeback"}
		for range 1 + random.IntN(3) {
			args = append(args, "-c", fmt.Sprintf("write -q -s %s %dk 64k", pattern, 64*random.IntN(256)))
		}
		args = append(args, "-c", fmt.Sprintf("write -q -s %s 0 64k", pattern))
		if random.IntN(3) == 0 {
			args = append(args, "-c", fmt.Sprintf("discard -q %dk 64k", 64+64*random.IntN(255)))
		}
		if out, err := exec.Command("qemu-io", append(args, "rbd:"+image+":id=admin:conf="+s.ceph.Conf)...).CombinedOutput(); err != nil {
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
	head := s.head(t)
	for _, dev := range slices.Sorted(maps.Keys(head)) {
		fmt.Fprintln(h, dev, s.sum(t, head[dev]))
	}
	nvram, err := os.ReadFile(s.NVRAM)
	if err != nil {
		t.Fatal(err)
	}
	h.Write(nvram)
	return hex.EncodeToString(h.Sum(nil))
}

// Damage removes a snapshot of a disk behind the driver's back: Ceph lets nobody change one.
func (s *subject) Damage(t *testing.T, id snap.SnapshotID) {
	s.ceph.RBD(t, "snap", "rm", "--no-progress", s.d.rec.Snapshots[id].Disks["vda"].at())
}
