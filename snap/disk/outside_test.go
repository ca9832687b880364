//go:build cgo && libvirt_dlopen

package disk

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"libvirt.org/go/libvirt"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/testkit"
)

// administered is a guest that somebody works on with virsh and qemu-img between checkpoints.
type administered struct {
	*vm
	d      *Driver
	rnd    *rand.Rand
	n      int
	word   string
	size   int64 // of vda, in MiB
	points []point
	stale  string // a definition from before the last checkpoint
}

// point is a checkpoint, and what the guest had then.
type point struct {
	id   snap.SnapshotID
	word string
	size int64
}

// works are what the admin does. Each ends with a domain that can be captured.
var works = map[string]func(*administered, *testing.T){
	"pull":           func(a *administered, t *testing.T) { a.virsh(t, "blockpull", a.Name, "vda", "--wait") },
	"resize":         func(a *administered, t *testing.T) { a.resize(t, false) },
	"resize off":     func(a *administered, t *testing.T) { a.resize(t, true) },
	"snapshot":       (*administered).snapshot,
	"internal":       (*administered).internal,
	"commit":         (*administered).commit,
	"attach, detach": (*administered).attach,
	"suspend":        (*administered).suspend,
	"save":           (*administered).save,
	"define":         (*administered).redefine,
}

// A guest is worked on with virsh between checkpoints. Each work is followed, or refused with
// a sentence until it is taken back as that says; and every checkpoint restores, back and forth,
// to what the guest had written, with the sizes that its disks had.
//
// In a long run there are more works and rollbacks.
func testAdministered(t *testing.T) {
	t.Parallel()
	a := &administered{vm: newVM(t, disktest.GuestOptions{Disks: 2, Devices: ports}), rnd: testkit.Rand(t), size: 64}
	a.d = a.driver(t, t.TempDir(), func(c *Config) { c.Depth = 8 })
	a.boot(t)
	a.take(t)
	names := slices.Sorted(maps.Keys(works))
	names = slices.DeleteFunc(names, func(name string) bool { return name == "resize off" && !long }) // testResizedWhileOff does that without a boot
	for range atLeast(1, 3) {
		a.rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for i, name := range names[:atLeast(5, len(names))] {
			t.Log(name)
			works[name](a, t)
			a.take(t)
			if long && i%2 == 0 {
				a.back(t, a.points[a.rnd.IntN(len(a.points))])
			}
			if err := a.d.Maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		a.back(t, a.points[0])
		a.back(t, a.points[len(a.points)-1])
	}
	for _, p := range a.points {
		if err := a.d.Verify(t.Context(), p.id, snap.Full); err != nil {
			t.Errorf("%s: %v", p.id, err)
		}
	}
}

// virsh runs a command of virsh's that must succeed.
func (a *administered) virsh(t *testing.T, args ...string) string {
	t.Helper()
	out, err := a.tryVirsh(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (a *administered) tryVirsh(args ...string) (string, error) {
	out, err := exec.Command("virsh", append([]string{"-q", "-c", a.host.URI}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// take writes a word and takes a checkpoint.
func (a *administered) take(t *testing.T) {
	t.Helper()
	a.again(t)
	a.n++
	a.word = fmt.Sprintf("word%d", a.n)
	a.Do(t, "set "+a.word)
	a.stale = a.xml(t, libvirt.DOMAIN_XML_INACTIVE|libvirt.DOMAIN_XML_SECURE)
	a.points = append(a.points, point{capture(t, a.d).ID, a.word, a.size})
}

// refused checks that a checkpoint is refused with something to do about it.
func (a *administered) refused(t *testing.T) {
	t.Helper()
	_, err := a.d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-refused"})
	fails(t, err, errs.Conflict, a.Name)
}

// back rolls back, and looks whether the guest has what it had.
func (a *administered) back(t *testing.T, to point) {
	t.Helper()
	now := point{word: a.word, size: a.size}
	now.id = rollback(t, a.d, to.id)
	a.points = append(a.points, now)
	a.agrees(t, a.d)
	a.WaitReady(t)
	a.word, a.size = to.word, to.size
	if got := a.Do(t, "get"); got != both(a.word) {
		t.Fatalf("%s: the guest reads %q, and wrote %q", to.id, got, a.word)
	}
	if got := a.Do(t, "sh cat /sys/block/vda/size"); got != fmt.Sprintf("%d|", a.size<<11) {
		t.Fatalf("%s: the disk has %q sectors, and had %d MiB", to.id, got, a.size)
	}
}

func (a *administered) resize(t *testing.T, off bool) {
	t.Helper()
	a.size += 8
	if !off {
		a.virsh(t, "blockresize", a.Name, "vda", fmt.Sprintf("%dM", a.size))
		return
	}
	if err := a.lookup(t).Destroy(); err != nil {
		t.Fatal(err)
	}
	qemuImg(t, "resize", "-q", "-f", "qcow2", a.sources(t, libvirt.DOMAIN_XML_INACTIVE)["vda"], fmt.Sprintf("%dM", a.size))
	a.boot(t)
}

// snapshot makes overlays of libvirt's own on the disks, and commits them as the error says.
func (a *administered) snapshot(t *testing.T) {
	t.Helper()
	a.virsh(t, "snapshot-create-as", a.Name, "mine", "--disk-only", "--atomic")
	a.refused(t)
	a.virsh(t, "snapshot-delete", a.Name, "mine", "--metadata")
	a.refused(t)
	overlays := a.sources(t, 0)
	for _, dev := range []string{"vda", "vdb"} {
		a.virsh(t, "blockcommit", a.Name, dev, "--active", "--shallow", "--pivot", "--wait")
		if err := os.Remove(overlays[dev]); err != nil {
			t.Fatal(err)
		}
	}
}

// internal makes a snapshot within the images, and removes it.
func (a *administered) internal(t *testing.T) {
	t.Helper()
	a.virsh(t, "snapshot-create-as", a.Name, "inside")
	a.refused(t)
	a.virsh(t, "snapshot-delete", a.Name, "inside")
}

// commit tries to put the images that the guest writes to into layers, which nobody can.
func (a *administered) commit(t *testing.T) {
	t.Helper()
	if out, err := a.tryVirsh("blockcommit", a.Name, "vda", "--active", "--pivot", "--wait"); err == nil {
		t.Errorf("a layer was written to: %s", out)
	}
	_, _ = a.tryVirsh("blockjob", a.Name, "vda", "--abort") // there may be none
}

// attach attaches a disk, and detaches the one that was attached before.
func (a *administered) attach(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk.xml")
	change := func(command, path string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(diskXML(path, "vdc")), 0o600); err != nil {
			t.Fatal(err)
		}
		a.virsh(t, command, a.Name, file, "--live", "--config")
	}
	path, _ := a.newDisk(t, fmt.Sprintf("more%d", a.n), "vdc")
	change("attach-device", path)
	a.Do(t, "sh while [ ! -e /dev/vdc ]; do usleep 50000; done")
	a.take(t)
	change("detach-device", a.sources(t, 0)["vdc"])
	testkit.Eventually(t, "the guest lets go of the disk", func() bool { return a.sources(t, 0)["vdc"] == "" })
}

// suspend has a checkpoint made of a guest that is suspended.
func (a *administered) suspend(t *testing.T) {
	t.Helper()
	a.virsh(t, "suspend", a.Name)
	a.points = append(a.points, point{capture(t, a.d).ID, a.word, a.size})
	a.virsh(t, "resume", a.Name)
}

// save saves the guest with its memory, and starts it from that.
func (a *administered) save(t *testing.T) {
	t.Helper()
	a.virsh(t, "managedsave", a.Name)
	a.refused(t)
	a.virsh(t, "start", a.Name)
}

// redefine defines the domain as it is, and by an old copy of its definition.
func (a *administered) redefine(t *testing.T) {
	t.Helper()
	now := a.xml(t, libvirt.DOMAIN_XML_INACTIVE|libvirt.DOMAIN_XML_SECURE)
	file := filepath.Join(t.TempDir(), "domain.xml")
	for i, text := range []string{now, a.stale, now} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		a.virsh(t, "define", file)
		if i == 1 {
			a.refused(t)
		}
	}
}
