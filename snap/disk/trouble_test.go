//go:build cgo && libvirt_dlopen

package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirt"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/virt"
	"mulligan/testkit"
)

// fails checks an error's kind, and that it names what it is about and what to do.
func fails(t *testing.T, err error, kind errs.Kind, names ...string) {
	t.Helper()
	if errs.KindOf(err) != kind {
		t.Fatalf("want %s, got %s: %v", kind, errs.KindOf(err), err)
	}
	for _, name := range names {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q does not name %q", err, name)
		}
	}
	if errs.HintOf(err) == "" || strings.Contains(err.Error(), "\n") {
		t.Errorf("%q is not one line with a hint", err)
	}
}

// newOff gives a subject that is off, with two snapshots of different states.
func newOff(t *testing.T) (s *subject, first, second snap.SnapshotID) {
	t.Helper()
	dir := inMemory(t)
	s = &subject{vm: newVM(t, disktest.GuestOptions{SizeMiB: 4, KeepBare: true, NVRAM: true, Dir: dir}), state: filepath.Join(dir, "state")}
	s.Mutate(t, 0)
	s.Reopen(t)
	first = capture(t, s.d).ID
	s.Mutate(t, 1)
	second = capture(t, s.d).ID
	s.Mutate(t, 2)
	return s, first, second
}

// What is damaged is found before anything is touched, and what does not rest
// on it can still be had.
func testDamagedLayers(t *testing.T) {
	for name, hurt := range map[string]func(path string) error{
		"missing":   os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, 70000) },
		"changed": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte("hurt"), 60000)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, first, second := newOff(t)
			if err := s.d.Maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
			rollback(t, s.d, first) // so that the domain does not rest on the second
			s.Mutate(t, 3)
			before := s.Fingerprint(t)
			path := s.d.tree.Layers[s.d.tree.Snapshots[second].Layer].Files["vda"].Path
			if err := imagefile.SetImmutable(path, false); err != nil {
				t.Fatal(err)
			}
			if err := hurt(path); err != nil {
				t.Fatal(err)
			}
			base := capture(t, s.d).ID
			fails(t, s.d.Verify(t.Context(), second, snap.Quick), errs.Corrupt, path)
			_, err := s.d.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: second, Base: base})
			fails(t, err, errs.Corrupt, path)
			if s.Fingerprint(t) != before {
				t.Error("the domain was touched")
			}
			rollback(t, s.d, first)
		})
	}
}

// A user puts a link to a file outside, or a pipe, in the place of the domain's NVRAM, or owns its folder: nothing is captured through it, and no restore writes there.
func testReplacedNVRAM(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	for name, c := range map[string]struct {
		put   func(s *subject) error
		names string
	}{
		"link":   {func(s *subject) error { return os.Symlink(outside, s.NVRAM) }, "is no plain file"},
		"pipe":   {func(s *subject) error { return unix.Mkfifo(s.NVRAM, 0o600) }, "is no plain file"},
		"folder": {func(s *subject) error { return os.Chown(filepath.Dir(s.NVRAM), nobody, nobody) }, "users other than root can replace files there"},
	} {
		t.Run(name, func(t *testing.T) {
			s, first, _ := newOff(t)
			base := capture(t, s.d).ID
			sw, err := s.d.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: first, Base: base})
			if err != nil {
				t.Fatal(err)
			}
			kept, err := os.ReadFile(s.NVRAM)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Remove(s.NVRAM), c.put(s)); err != nil {
				t.Fatal(err)
			}
			_, err = s.d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-replaced"})
			fails(t, err, errs.Denied, c.names)
			if name == "folder" { // a user can put back what a restore looks at before it begins
				err = os.WriteFile(s.NVRAM, kept, 0o600)
				if err != nil {
					t.Fatal(err)
				}
			}
			fails(t, sw.Commit(t.Context()), errs.Denied, c.names)
			if data, err := os.ReadFile(outside); err != nil || string(data) != "secret" {
				t.Errorf("the file outside holds %q, %v", data, err)
			}
			if err := os.Chown(filepath.Dir(s.NVRAM), 0, 0); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.RemoveAll(s.NVRAM), os.WriteFile(s.NVRAM, kept, 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := sw.Undo(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := sw.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			capture(t, s.d)
			rollback(t, s.d, first)
		})
	}
}

// A start on a stale definition fails; it does not corrupt the layer.
func TestStaleStart(t *testing.T) {
	v := newVM(t, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), nil)
	old := v.xml(t, libvirt.DOMAIN_XML_INACTIVE)
	s := capture(t, d)
	v.define(t, old) // as somebody with an old copy would
	if err := v.lookup(t).Create(); err == nil {
		t.Error("a domain starts on a frozen layer")
	}
	_, err := d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
	fails(t, err, errs.Conflict, v.Disks[0])
	if err := d.dom.define("test", mustMachine(t, d), d.tree.Head); err != nil {
		t.Fatal(err)
	}
	if err := d.Verify(t.Context(), s.ID, snap.Full); err != nil {
		t.Error(err)
	}
	capture(t, d)
}

func mustMachine(t *testing.T, d *Driver) virt.Machine {
	t.Helper()
	m, err := d.dom.machine("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	return m
}

// What others do to the domain is noticed, named, and loses nothing.
func TestBehindOurBack(t *testing.T) {
	s, first, _ := newOff(t)
	take := func() error {
		_, err := s.d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
		return err
	}
	ours := s.xml(t, libvirt.DOMAIN_XML_INACTIVE)

	other := filepath.Join(filepath.Dir(s.Disks[0]), "other.qcow2")
	if out, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", other, "4M").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := virt.Redirect(ours, map[string]string{"vda": other})
	if err != nil {
		t.Fatal(err)
	}
	s.define(t, text)
	fails(t, take(), errs.Conflict, other)
	s.define(t, ours)

	if err := s.lookup(t).Rename("renamed", 0); err != nil {
		t.Fatal(err)
	}
	fails(t, take(), errs.Conflict, "renamed")
	renamed, err := s.conn.LookupDomainByName("renamed")
	if err != nil {
		t.Fatal(err)
	}
	if err := renamed.Rename(s.Name, 0); err != nil {
		t.Fatal(err)
	}

	undefine := func() {
		t.Helper()
		if err := s.lookup(t).UndefineFlags(libvirt.DOMAIN_UNDEFINE_KEEP_NVRAM); err != nil {
			t.Fatal(err)
		}
	}
	undefine()
	s.define(t, regexp.MustCompile(`<uuid>.*</uuid>`).ReplaceAllString(ours, ""))
	fails(t, take(), errs.Conflict, "defined anew")
	undefine()
	s.define(t, ours)

	if err := take(); err != nil {
		t.Fatal(err)
	}
	rollback(t, s.d, first)

	gone := s.driver(t, t.TempDir(), func(c *Config) { c.Domain = "no-such-domain" })
	_, err = gone.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
	fails(t, err, errs.NotFound, "no-such-domain")
	away := s.driver(t, t.TempDir(), func(c *Config) { c.URI = "qemu:///system?socket=/nowhere" })
	_, err = away.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
	fails(t, err, errs.Unavailable, "/nowhere")
}

// A domain with snapshots of libvirt's own is refused until they are gone.
func TestLibvirtsOwnSnapshots(t *testing.T) {
	v := newVM(t, disktest.GuestOptions{SizeMiB: 4, KeepBare: true})
	d := v.driver(t, t.TempDir(), nil)
	mine, err := v.lookup(t).CreateSnapshotXML("<domainsnapshot><name>mine</name></domainsnapshot>", 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
	fails(t, err, errs.Conflict)
	if err := mine.Delete(0); err != nil {
		t.Fatal(err)
	}
	capture(t, d)
}

// A pool without room refuses, and the domain stays as it is.
func TestFullDisk(t *testing.T) {
	theHost(t)
	s, first, _ := newOff(t)
	full := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", full).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", full).Run() })
	before := s.Fingerprint(t)
	s.d.cfg.PoolDir = full
	_, err := s.d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
	fails(t, err, errs.Failed, "no space")
	s.d.cfg.PoolDir = ""
	if s.Fingerprint(t) != before {
		t.Error("the domain was touched")
	}
	// The records' own disk: nothing begins that cannot be written down.
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs", s.state).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(s.state, "filler"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
	if err == nil {
		t.Error("a capture succeeded that could not be recorded")
	}
	if out, err := exec.Command("umount", s.state).CombinedOutput(); err != nil {
		t.Fatalf("umount: %v: %s", err, out)
	}
	if s.Fingerprint(t) != before {
		t.Error("the domain was touched")
	}
	rollback(t, s.d, first)
}

// The disk fills while a capture is at work: it says so, and whatever it had come
// to, the domain has what it had and goes on once there is room.
func testDiskFillsMeanwhile(t *testing.T) {
	theHost(t)
	small := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", small).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", small).Run() })
	s := &subject{vm: newVM(t, disktest.GuestOptions{SizeMiB: 4, KeepBare: true, NVRAM: true, Dir: filepath.Join(small, "disks")}), state: filepath.Join(small, "state")}
	s.Mutate(t, 0)
	s.Reopen(t)
	first := capture(t, s.d).ID
	filler := filepath.Join(small, "filler")
	for i, step := range []string{"overlay vda", "capture: switch", "capture: switched", "capture: freeze", "capture: record"} {
		s.Mutate(t, int64(i)+1)
		before := s.Fingerprint(t)
		reached := false
		s.d.cfg.Failpoint = func(at string) error {
			if at == step {
				reached = true
				_ = exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=64k").Run() // it ends as the disk is full
			}
			return nil
		}
		_, err := s.d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
		s.d.cfg.Failpoint = nil
		if !reached || err == nil || !strings.Contains(strings.ToLower(err.Error()), "no space left") {
			t.Fatalf("%s (reached: %t): %v", step, reached, err)
		}
		if s.Fingerprint(t) != before {
			t.Errorf("%s: the domain was touched", step)
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		if err := s.d.Sweep(t.Context(), snap.Gone{Snapshots: []snap.SnapshotID{"vm-x"}}); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		s.agrees(t, s.d)
		if s.Fingerprint(t) != before {
			t.Errorf("%s: the domain was touched afterwards", step)
		}
		if err := s.d.Verify(t.Context(), first, snap.Full); err != nil {
			t.Errorf("%s: %v", step, err)
		}
	}
	last := capture(t, s.d).ID
	rollback(t, s.d, first)
	rollback(t, s.d, last)
}

// The disk fills while the memory of a running guest is written to it: that is
// said, and the guest goes on with its disks, as do captures once there is room.
func testDiskFillsUnderARunningGuest(t *testing.T) {
	t.Parallel()
	disktest.Need(t)
	small := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprint("size=", imagefile.MinFree+12<<20), "tmpfs", small).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", small).Run() })
	h, err := disktest.Start(disktest.Options{}) // libvirtd sees what was mounted before it came
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	v := newVMOn(t, h, disktest.GuestOptions{Disks: 2})
	v.boot(t)
	d := v.driver(t, t.TempDir(), func(cfg *Config) { cfg.PoolDir = small })
	v.Do(t, "set A")
	first := capture(t, d).ID
	v.Do(t, "set B")
	v.Do(t, "sh echo up >/tmp/up; dd if=/dev/urandom of=/tmp/much bs=1M count=70 2>/dev/null") // more memory than there is room
	lives := func(want string) {
		t.Helper()
		v.agrees(t, d)
		if got := v.Do(t, "get") + " " + v.Do(t, "sh cat /tmp/up"); got != want+" up|" {
			t.Fatalf("the guest has %q, and should have %q", got, want)
		}
	}
	_, err = d.CaptureMemory(t.Context(), snap.CaptureRequest{ID: "vm-x"})
	fails(t, err, errs.Failed)
	if !strings.Contains(strings.ToLower(err.Error()), "no space") {
		t.Errorf("the error is %q", err)
	}
	if err := d.Sweep(t.Context(), snap.Gone{Snapshots: []snap.SnapshotID{"vm-x"}}); err != nil {
		t.Fatal(err)
	}
	lives("B B")
	v.Do(t, "set C")
	lives("C C")

	// Without memory there is room, until others take it.
	second := capture(t, d).ID
	filler := filepath.Join(small, "filler")
	_ = exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=4k").Run() // it ends as the disk is full
	_, err = d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-y"})
	fails(t, err, errs.Failed)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	lives("C C")
	if out, err := exec.Command("mount", "-o", "remount,size=400m", small).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	v.Do(t, "set D")
	third, err := d.CaptureMemory(t.Context(), snap.CaptureRequest{ID: "vm-z"})
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []struct {
		id   snap.SnapshotID
		want string
	}{{first, "A A"}, {second, "C C"}, {third.ID, "D D"}} {
		rollback(t, d, to.id)
		v.WaitReady(t)
		if got := v.Do(t, "get"); got != to.want {
			t.Errorf("the guest has %q, and should have %q", got, to.want)
		}
	}
	lives("D D") // with its memory

	// QEMU stops a guest that cannot write, and nobody has asked for that: after a rollback it runs.
	_ = exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=4k").Run() // it ends as the disk is full
	v.Do(t, "sh (dd if=/dev/urandom of=/a/noise bs=64k count=64; sync) >/dev/null 2>&1 &")
	state := func() string {
		s, err := d.Unit().State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Sub
	}
	testkit.Eventually(t, "the guest is stopped", func() bool { return state() != "running" })
	if got := state(); got != "stalled" {
		t.Errorf("a guest that cannot write is %s", got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	rollback(t, d, second)
	if got := state(); got != "running" {
		t.Fatalf("after the rollback the guest is %s", got)
	}
	v.WaitReady(t)
	if got := v.Do(t, "get"); got != "C C" {
		t.Errorf("the guest has %q", got)
	}
}

// Disks that overlays cannot hold are refused by name; what the guest cannot
// write to is left alone.
func TestRefusals(t *testing.T) {
	disk := func(attrs, inside string) string {
		return fmt.Sprintf("<domain type='qemu'><name>x</name><devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/a'/><target dev='vda'/></disk><disk %s>%s<target dev='vdz'/></disk></devices></domain>", attrs, inside)
	}
	const qcow2 = "<driver name='qemu' type='qcow2'/><source file='/b'/>"
	for name, text := range map[string]string{
		"raw":       disk("type='file' device='disk'", "<driver name='qemu' type='raw'/><source file='/b'/>"),
		"block":     disk("type='block' device='disk'", "<driver name='qemu' type='qcow2'/><source dev='/dev/sdb'/>"),
		"network":   disk("type='network' device='disk'", "<driver name='qemu' type='raw'/><source protocol='rbd' name='p/i'><host name='h'/></source>"),
		"volume":    disk("type='volume' device='disk'", "<driver name='qemu' type='qcow2'/><source pool='p' volume='v'/>"),
		"shared":    disk("type='file' device='disk'", qcow2+"<shareable/>"),
		"transient": disk("type='file' device='disk'", qcow2+"<transient/>"),
		"lun":       disk("type='block' device='lun'", "<driver name='qemu' type='raw'/><source dev='/dev/sdb'/>"),
	} {
		_, err := virt.Inspect("test", text)
		t.Run(name, func(t *testing.T) { fails(t, err, errs.Unsupported, "vdz") })
	}
	for name, text := range map[string]string{
		"cdrom":    disk("type='file' device='cdrom'", "<driver name='qemu' type='raw'/><source file='/b.iso'/>"),
		"empty":    disk("type='file' device='cdrom'", ""),
		"readonly": disk("type='file' device='disk'", "<driver name='qemu' type='raw'/><source file='/b'/><readonly/>"),
		"no":       disk("type='file' device='disk' snapshot='no'", qcow2),
	} {
		s, err := virt.Inspect("test", text)
		if err != nil || len(s.Disks) != 1 || len(s.Left) != 1 || s.Left[0] != "vdz" {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	_, err := virt.Inspect("test", "<domain type='qemu'><name>x</name><devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/a'/><target dev='vda'/></disk><tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm></devices></domain>")
	fails(t, err, errs.Unsupported, "TPM")
}

// A stock libvirt changes the owners of images as it opens them, and remembers
// what they were; layers are immutable all the same.
func testChangingOwners(t *testing.T) {
	t.Parallel()
	disktest.Need(t)
	h, err := disktest.Start(disktest.Options{Owners: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	v := newVMOn(t, h, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), nil)
	s := capture(t, d) // while it is off: the files still belong to root
	v.boot(t)
	v.Do(t, "set A")
	a := capture(t, d)
	v.Do(t, "set B")
	rollback(t, d, a.ID)
	v.WaitReady(t)
	if got := v.Do(t, "get"); got != "A" {
		t.Errorf("the guest reads %q", got)
	}
	for _, id := range []snap.SnapshotID{s.ID, a.ID} {
		if err := d.Verify(t.Context(), id, snap.Full); err != nil {
			t.Error(err)
		}
	}
}

// Images that somebody else could exchange for a link are not touched.
func TestOthersFolders(t *testing.T) {
	dir := filepath.Join(inMemory(t), "theirs")
	v := newVM(t, disktest.GuestOptions{SizeMiB: 4, KeepBare: true, Dir: dir})
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	d := v.driver(t, t.TempDir(), nil)
	_, err := d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
	fails(t, err, errs.Denied, dir)
	if err := os.Chown(dir, 0, 0); err != nil {
		t.Fatal(err)
	}
	capture(t, d)
}
