//go:build cgo && libvirt_dlopen

package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/forkdomain"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/imagefile"
)

// forkOf is a fork of a domain under test.
type forkOf struct {
	*disktest.Guest
	cfg forkdomain.Config
	d   *Driver
}

// fork makes a fork of the domain from a snapshot of its driver, as the daemon does.
func (v *vm) fork(t testing.TB, parent *Driver, id snap.SnapshotID, app string, hook failpoint.Hook) (*forkOf, error) {
	t.Helper()
	name := v.Name + "-fork-" + app
	f := &forkOf{Guest: v.Fork(name, v.Socket()+"."+name)}
	f.cfg = forkdomain.Config{App: app, Domain: name, URI: v.host.URI, StateDir: filepath.Join(t.TempDir(), app), Failpoint: hook}
	t.Cleanup(func() {
		f.HangUp()
		f.cfg.Failpoint = nil
		if f.d != nil {
			_ = f.d.Close()
		}
		if err := forkdomain.Remove(f.cfg); err != nil {
			t.Error(err)
		}
	})
	loan, err := parent.Lend(t.Context(), id, app)
	if err == nil {
		err = forkdomain.Make(t.Context(), f.cfg, loan)
	}
	if err != nil {
		return f, err
	}
	f.d, err = New(Config{App: app, Domain: name, URI: v.host.URI, StateDir: f.cfg.StateDir, Shutdown: guest.Destroy})
	return f, err
}

// remove removes the fork.
func (f *forkOf) remove(t testing.TB) {
	t.Helper()
	f.HangUp()
	if err := f.d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := forkdomain.Remove(f.cfg); err != nil {
		t.Fatal(err)
	}
}

// leftovers lists what there is of forks: domains, and files in the folders of images.
func (v *vm) leftovers(t testing.TB) (list []string) {
	t.Helper()
	v.connect(t)
	all, err := v.conn.ListAllDomains(0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		name, err := all[i].GetName()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, v.Name+"-") {
			list = append(list, "domain "+name)
		}
		_ = all[i].Free()
	}
	for _, pattern := range []string{"mulligan/fork*", "mulligan/fork*/*", "*.vm*-fork-*"} {
		for _, dir := range []string{filepath.Dir(v.Disks[0]), filepath.Dir(v.Socket())} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, found...)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

const twoDisks, oneTap = 2, "<interface type='ethernet'><mac address='52:54:00:11:22:33'/><model type='virtio'/></interface>"

// Two forks of a running guest go on from the same instant, beside it, and diverge. One is kept.
func testForkGuest(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{Disks: twoDisks, Devices: oneTap})
	v.boot(t)
	d := v.driver(t, t.TempDir(), nil)
	v.Do(t, "set before")
	v.Do(t, "sh echo warm >/run/warm")
	early := capture(t, d) // a layer below the one that is lent
	cp, err := d.CaptureMemory(t.Context(), snap.CaptureRequest{ID: snap.SnapshotID(newID())})
	if err != nil {
		t.Fatal(err)
	}
	v.Do(t, "set after")
	if got := v.Do(t, "sh cat /run/warm"); got != "warm|" {
		t.Fatalf("the parent says %q", got)
	}

	var forks []*forkOf
	for _, name := range []string{"fork1", "fork2"} {
		f, err := v.fork(t, d, cp.ID, name, nil)
		if err != nil {
			t.Fatal(err)
		}
		forks = append(forks, f)
		if s, err := f.d.Capture(t.Context(), snap.CaptureRequest{ID: "origin"}); err != nil || s.Position != "L000001" {
			t.Fatalf("the origin is captured as %+v, %v", s, err)
		}
		if err := f.d.Unit().Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.WaitReady(t)
	}
	for i, f := range forks {
		if got := f.Do(t, "get"); got != "before before" {
			t.Errorf("%s has %q on its disks", f.Name, got)
		}
		if got := f.Do(t, "sh cat /run/warm"); got != "warm|" {
			t.Errorf("%s booted, and did not go on: %q", f.Name, got)
		}
		// What the guest's kernel knows of its card is in its memory.
		if was, is := v.Do(t, "sh cat /sys/class/net/eth0/address"), f.Do(t, "sh cat /sys/class/net/eth0/address"); is != was || was == "|" {
			t.Errorf("the guest's card is %q in the parent and %q in %s", was, is, f.Name)
		}
		f.Do(t, fmt.Sprintf("set fork%d", i+1))
	}
	if a, b, c := v.Do(t, "get"), forks[0].Do(t, "get"), forks[1].Do(t, "get"); a != "after after" || b != "fork1 fork1" || c != "fork2 fork2" {
		t.Errorf("parent %q, forks %q and %q", a, b, c)
	}
	apart(t, v, forks)

	// In a fork, checkpoints and rollbacks are as everywhere.
	mine := capture(t, forks[0].d)
	forks[0].Do(t, "set later")
	forks[0].HangUp()
	rollback(t, forks[0].d, mine.ID)
	forks[0].WaitReady(t)
	if got := forks[0].Do(t, "get"); got != "fork1 fork1" {
		t.Errorf("after its rollback the fork has %q", got)
	}
	forks[0].HangUp()
	rollback(t, forks[0].d, "origin")
	forks[0].WaitReady(t)
	if got := forks[0].Do(t, "get") + forks[0].Do(t, "sh cat /run/warm"); got != "before beforewarm|" {
		t.Errorf("back at its origin the fork has %q", got)
	}

	// Merges go around what is lent.
	if err := d.Delete(t.Context(), early.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range forks {
		if err := f.d.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := forks[1].d.Verify(t.Context(), "", snap.Full); errs.KindOf(err) != errs.NotFound {
		t.Errorf("a snapshot without a name: %v", err)
	}

	// Keep the second: its state becomes the parent's.
	forks[1].Do(t, "set kept")
	s := capture(t, forks[1].d)
	forks[1].Do(t, "set too-late")
	kept, err := d.Adopt(t.Context(), forks[1].d, s.ID, snap.SnapshotID(newID()))
	if err != nil {
		t.Fatal(err)
	}
	v.HangUp()
	safety := rollback(t, d, kept.ID)
	v.WaitReady(t)
	if got := v.Do(t, "get"); got != "kept kept" {
		t.Errorf("the parent has %q", got)
	}
	for _, f := range forks {
		f.remove(t)
	}
	if list := v.leftovers(t); len(list) > 0 {
		t.Errorf("left: %q", list)
	}
	if err := d.Return(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(t.Context(), cp.ID); err != nil { // the kept state rests on it
		t.Fatal(err)
	}
	if err := d.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range []snap.SnapshotID{kept.ID, safety} {
		if err := d.Verify(t.Context(), id, snap.Full); err != nil {
			t.Error(err)
		}
	}
	v.HangUp()
	rollback(t, d, safety)
	v.WaitReady(t)
	if got := v.Do(t, "get"); got != "after after" {
		t.Errorf("after the undo the parent has %q", got)
	}
}

// apart checks that the domains have nothing in common that they write to.
func apart(t *testing.T, v *vm, forks []*forkOf) {
	t.Helper()
	seen := map[string]string{}
	names := []string{v.Name}
	for _, f := range forks {
		names = append(names, f.Name)
	}
	for _, name := range names {
		m, err := v.conn.LookupDomainByName(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, flags := range []libvirt.DomainXMLFlags{0, libvirt.DOMAIN_XML_INACTIVE} {
			text, err := m.GetXMLDesc(flags)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range ownParts(t, text) {
				if other := seen[part]; other != "" && other != name {
					t.Errorf("%s and %s both have %s", other, name, part)
				}
				seen[part] = name
			}
		}
		_ = m.Free()
	}
	if len(seen) < 3*len(names) {
		t.Errorf("only %d things were looked at: %v", len(seen), seen)
	}
}

// ownParts lists what a definition names that only one domain may have.
func ownParts(t *testing.T, text string) (list []string) {
	t.Helper()
	var dom libvirtxml.Domain
	if err := dom.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	list = append(list, dom.Name, dom.UUID)
	for _, d := range dom.Devices.Disks {
		list = append(list, d.Source.File.File)
	}
	for _, c := range dom.Devices.Interfaces {
		list = append(list, c.MAC.Address)
		if c.Target != nil {
			list = append(list, c.Target.Dev)
		}
	}
	for _, c := range dom.Devices.Channels {
		if c.Source.UNIX.Path != "" {
			list = append(list, c.Source.UNIX.Path)
		}
	}
	return append(list, dom.Devices.Serials[0].Source.File.Path)
}

// A fork that is made from disks alone boots. One that is interrupted anywhere can be removed, and nothing is left of it.
func TestForkGuestInterrupted(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{NVRAM: true})
	for _, path := range []string{v.NVRAM, v.NVRAM + ".code"} {
		if err := os.WriteFile(path, make([]byte, 1<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := v.driver(t, t.TempDir(), nil)
	cp := capture(t, d)
	before := v.sources(t, libvirt.DOMAIN_XML_INACTIVE)
	var steps []string
	count := func(step string) error { steps = append(steps, step); return nil }
	f, err := v.fork(t, d, cp.ID, "fork0", count)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.d.Capture(t.Context(), snap.CaptureRequest{ID: "origin"}); err != nil {
		t.Fatal(err)
	}
	f.remove(t)
	if list := v.leftovers(t); len(list) > 0 {
		t.Errorf("left: %q", list)
	}
	made := slices.Index(steps, "fork domain: undefined")
	if made < 4 {
		t.Fatalf("the steps are %q", steps)
	}
	for i, step := range steps[:made] {
		t.Run(step, func(t *testing.T) {
			left := i
			f, err := v.fork(t, d, cp.ID, fmt.Sprintf("fork%d", i+1), func(string) error {
				if left--; left < 0 {
					return errs.New(errs.Failed, "", "interrupted")
				}
				return nil
			})
			if err == nil || left >= 0 {
				t.Fatalf("it was not interrupted: %v", err)
			}
			f.cfg.Failpoint = nil
			for range 2 { // it is repeatable
				if err := forkdomain.Remove(f.cfg); err != nil {
					t.Fatal(err)
				}
			}
			if list := v.leftovers(t); len(list) > 0 {
				t.Errorf("left: %q", list)
			}
		})
	}
	if after := v.sources(t, libvirt.DOMAIN_XML_INACTIVE); after["vda"] != before["vda"] {
		t.Errorf("the parent's disk is %s, and was %s", after["vda"], before["vda"])
	}
	if err := d.Flattens(t.Context()); errs.KindOf(err) != errs.Conflict {
		t.Errorf("disks that are lent can be put together: %v", err)
	}
	if err := d.Return(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := d.Flattens(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := imagefile.StatOf(before["vda"]); err != nil {
		t.Error(err)
	}
}

// An adoption that is interrupted anywhere leaves nothing, and can be repeated.
func testAdoptInterrupted(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{})
	fail := -1
	d := v.driver(t, t.TempDir(), func(c *Config) {
		c.Failpoint = func(step string) error {
			if fail--; fail == -1 {
				return errs.New(errs.Failed, "", "interrupted")
			}
			return nil
		}
	})
	fail = -1
	cp := capture(t, d)
	f, err := v.fork(t, d, cp.ID, "fork1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.d.Unit().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.WaitReady(t)
	f.Do(t, "set forked")
	first := capture(t, f.d)
	f.Do(t, "set twice")
	second := capture(t, f.d)
	files := func() []string {
		list, err := filepath.Glob(filepath.Join(filepath.Dir(v.Disks[0]), "mulligan", "app-1", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	was := files()
	for steps := 0; ; steps++ {
		fail = steps
		_, err := d.Adopt(t.Context(), f.d, second.ID, "kept")
		if err == nil {
			if fail < 0 || steps < 4 {
				t.Fatalf("it has %d steps, or an interruption was ignored (%d)", steps, fail)
			}
			break
		}
		fail = -1
		if now := files(); !slices.Equal(now, was) {
			if err := d.images.dropOrphans(); err != nil { // the failure was in the cleaning up
				t.Fatal(err)
			}
			if now = files(); !slices.Equal(now, was) {
				t.Fatalf("step %d left %q, there was %q", steps, now, was)
			}
		}
	}
	fail = -1
	if got := v.read(t, d, "kept"); got != "twice" {
		t.Errorf("kept: %q", got)
	}
	if _, err := d.Adopt(t.Context(), f.d, first.ID, "earlier"); err != nil {
		t.Fatal(err)
	}
	if got := v.read(t, d, "earlier"); got != "forked" {
		t.Errorf("earlier: %q", got)
	}
	if err := d.Verify(t.Context(), "kept", snap.Full); err != nil {
		t.Error(err)
	}
}
