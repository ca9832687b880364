//go:build cgo && libvirt_dlopen

package daemon_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"libvirt.org/go/libvirt"

	"mulligan/daemon"
	"mulligan/durable"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

// atLeast is n, or all of it where there is time.
func atLeast(sample, all int) int {
	if long() {
		return all
	}
	return sample
}

// vmWorld is an app with files, a database and a domain with two disks.
type vmWorld struct {
	world
	*disktest.Guest
	host *disktest.Host
	conn *libvirt.Connect
	d    *daemon.Daemon
}

// newVMWorld registers the app, with its guest up.
func newVMWorld(t *testing.T, change func(*ipc.App)) *vmWorld {
	t.Helper()
	w := newDomain(t, "shop")
	w.set(t, "zero")
	w.d = w.open(t)
	app := ipc.App{
		Slug: "shop", Workspace: w.ws(), Domain: w.Name, URI: w.host.URI, Shutdown: "destroy",
		Databases: []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}},
	}
	if change != nil {
		change(&app)
	}
	if _, err := w.d.AddApp(t.Context(), root, app); err != nil {
		t.Fatal(err)
	}
	return w
}

// newDomain starts a libvirtd, and defines and boots a guest on it.
func newDomain(t *testing.T, name string) *vmWorld {
	t.Helper()
	return newDomainIn(t, name, "")
}

// newDomainIn is newDomain with the guest's images in a folder of the workspace.
func newDomainIn(t *testing.T, name, folder string) *vmWorld {
	t.Helper()
	h := disktest.Running(t)
	w := &vmWorld{world: world{dir: t.TempDir()}, host: h}
	if err := os.Mkdir(w.ws(), 0o755); err != nil {
		t.Fatal(err)
	}
	opt := disktest.GuestOptions{Disks: 2}
	if folder != "" {
		opt.Dir = filepath.Join(w.ws(), folder)
		t.Cleanup(func() { sh(t, `chattr -R -i "$1"`, w.ws()) }) // where frozen images lie
	}
	w.Guest = h.NewGuest(t, name, opt)
	var err error
	if w.conn, err = libvirt.NewConnect(h.URI); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.HangUp()
		if w.d != nil {
			w.close(t, w.d)
		}
		_, _ = w.conn.Close()
	})
	if _, err := w.conn.DomainDefineXML(w.XML); err != nil {
		t.Fatal(err)
	}
	w.boot(t)
	return w
}

func (w *vmWorld) domain(t *testing.T) *libvirt.Domain {
	t.Helper()
	d, err := w.conn.LookupDomainByName(w.Name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (w *vmWorld) boot(t *testing.T) {
	t.Helper()
	w.Boot(t)
}

func (w *vmWorld) up(t *testing.T) bool {
	t.Helper()
	up, err := w.domain(t).IsActive()
	if err != nil {
		t.Fatal(err)
	}
	return up
}

// put puts files, rows and both of the guest's disks into the state called word.
func (w *vmWorld) put(t *testing.T, word string) {
	t.Helper()
	w.set(t, word)
	if got := w.Do(t, "set "+word); got != word+" "+word {
		t.Fatalf("the guest wrote %q", got)
	}
}

// all is the state that files, rows and the running guest's disks agree on.
func (w *vmWorld) all(t *testing.T) string {
	t.Helper()
	word := w.word(t)
	if got := w.Do(t, "get"); got != word+" "+word {
		t.Fatalf("files and rows are in state %q, the guest's disks in %q", word, got)
	}
	return word
}

func (w *vmWorld) create(t *testing.T, req ipc.CreateRequest) ipc.Checkpoint {
	t.Helper()
	cp, err := w.d.Create(t.Context(), root, "shop", req)
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

func (w *vmWorld) rollback(t *testing.T, to ipc.CheckpointID) ipc.RollbackResult {
	t.Helper()
	res, err := w.d.Rollback(t.Context(), root, "shop", to, ipc.RollbackRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func stagesOf(res ipc.RollbackResult) string {
	var list []string
	for _, s := range res.Stages {
		list = append(list, string(s.Stage)+" "+string(s.Status))
	}
	return strings.Join(list, ", ")
}

// createQuiesced makes checkpoints until one is quiesced and warns of nothing: an emulated guest may need more than the five seconds that it
// has to freeze its filesystems, and to thaw them.
func createQuiesced(t *testing.T, d *daemon.Daemon) (cp ipc.Checkpoint) {
	t.Helper()
	waitFor(t, "a checkpoint is quiesced", func() bool {
		var err error
		cp, err = d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
		check(t, err)
		if !cp.Quiesced || len(cp.Warnings) > 0 {
			t.Logf("quiesced %t, warnings %q", cp.Quiesced, cp.Warnings)
		}
		return cp.Quiesced && len(cp.Warnings) == 0
	})
	return cp
}

// testDomain goes back and forth between three states of an app with files, a
// database and a guest, in random order: they always agree, and so do the two disks.
func testDomain(t *testing.T) {
	t.Parallel()
	w := newVMWorld(t, func(a *ipc.App) { a.Retention = ipc.Retention{KeepLast: 100, KeepSafety: 100, ExpireAfter: "0"} })
	states := map[ipc.CheckpointID]string{}
	var ids []ipc.CheckpointID
	for _, word := range []string{"one", "two", "three"} {
		w.put(t, word)
		cp := createQuiesced(t, w.d)
		if cp.VMSnapshotID == nil || cp.FilesSnapshot == nil || cp.DBSnapshotID == nil || len(cp.Warnings) > 0 {
			t.Fatalf("%+v", cp)
		}
		if !w.up(t) {
			t.Fatal("the guest was stopped for a checkpoint")
		}
		states[cp.ID], ids = word, append(ids, cp.ID)
	}
	// What concerns the files alone leaves the guest be.
	w.Do(t, "sh echo up >/tmp/up")
	res, err := w.d.Rollback(t.Context(), root, "shop", ids[0], ipc.RollbackRequest{Scope: []string{"file0"}}, nil)
	if err != nil || res.Stages[1].Status != ipc.StageSkipped || w.Do(t, "sh cat /tmp/up") != "up|" || w.Do(t, "get") != "three three" {
		t.Fatalf("of a file alone: %v, %+v", err, res.Stages)
	}
	if b, err := os.ReadFile(filepath.Join(w.ws(), "file0")); err != nil || string(b) != "one" {
		t.Fatalf("file0 has %q, %v", b, err)
	}
	n, rnd := atLeast(2, 30), testkit.Rand(t)
	for i := range n {
		word := fmt.Sprintf("later%d", i)
		w.put(t, word)
		id := ids[rnd.IntN(len(ids))]
		res := w.rollback(t, id)
		w.WaitReady(t)
		if got := w.all(t); got != states[id] {
			t.Fatalf("rollback %d: the app is in state %q, and should be in %q", i, got, states[id])
		}
		want := "safety-checkpoint ok, stop-unit ok, vm-revert ok, db-restore ok, start-unit ok, health-check skipped"
		if got := stagesOf(res); got != want || !res.Verification.Match || !res.Verification.Layers["disk"].Match {
			t.Fatalf("rollback %d: %s, %+v", i, got, res.Verification)
		}
		safety := res.SafetyCheckpoint.ID
		states[safety], ids = word, append(ids, safety)
	}
	for _, id := range ids {
		if res, err := w.d.Verify(t.Context(), root, "shop", id, snap.Full); err != nil || !res.OK {
			t.Errorf("%s: %v, %+v", id, err, res)
		}
	}
	t.Logf("%d rollbacks between %d checkpoints", n, len(ids))
}

// TestDomainMemory: with memory, a rollback goes on where the guest was.
func testDomainMemory(t *testing.T) {
	t.Parallel()
	w := newVMWorld(t, nil)
	w.put(t, "one")
	w.Do(t, "sh echo only in memory >/tmp/note")
	cp := w.create(t, ipc.CreateRequest{WithMemory: true})
	w.put(t, "two")
	w.Do(t, "sh rm /tmp/note")
	w.rollback(t, cp.ID)
	w.WaitReady(t)
	if got := w.all(t) + " " + w.Do(t, "sh cat /tmp/note"); got != "one only in memory|" {
		t.Errorf("the guest has %q", got)
	}
	if _, err := w.d.Create(t.Context(), root, "shop", ipc.CreateRequest{WithMemory: true, Quiesce: ipc.QuiesceStop}); errs.KindOf(err) != errs.Invalid {
		t.Errorf("with memory, and stopped: %v", err)
	}
}

// TestDomainUnit: an app whose unit starts its domain. Stopping and starting it
// means the domain; another unit is stopped and started beside it.
func testDomainUnit(t *testing.T) {
	t.Parallel()
	s := systemdtest.Boot(t)
	w := newDomain(t, "shop")
	w.set(t, "zero")
	s.WriteUnit(t, "of-app-shop.service", "[Service]\nType=oneshot\nRemainAfterExit=yes\n"+
		"ExecStart=/usr/bin/virsh -c "+w.host.URI+" start "+w.Name+"\n")
	s.WriteUnit(t, "beside.service", "[Service]\nExecStart=/bin/sleep 1000\n")
	run(t, s, "systemctl", "start", "beside.service")
	if err := w.domain(t).Destroy(); err != nil {
		t.Fatal(err)
	}
	run(t, s, "systemctl", "start", "of-app-shop.service")
	w.WaitReady(t)
	d := openHost(t, s)
	app, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Domain: w.Name, URI: w.host.URI})
	if err != nil {
		t.Fatal(err)
	}
	if app.Unit != "of-app-shop.service" || app.State != "running" {
		t.Fatalf("registered with unit %q, %s", app.Unit, app.State)
	}
	w.put(t, "one")
	cp := createQuiesced(t, d)
	w.put(t, "two")
	res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.WaitReady(t)
	if got := w.Do(t, "get"); got != "one one" || !strings.Contains(res.Stages[1].Notes, "domain shop") {
		t.Errorf("the guest has %q; %+v", got, res.Stages)
	}
	run(t, s, "systemctl", "is-active", "of-app-shop.service")

	// Another unit: a checkpoint stops it and not the guest; stopping for good means both.
	unit := "beside.service"
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Unit: &unit}); err != nil {
		t.Fatal(err)
	}
	w.Do(t, "sh echo up >/tmp/up")
	cp = createQuiesced(t, d)
	run(t, s, "systemctl", "is-active", unit)
	if got := w.Do(t, "sh cat /tmp/up"); got != "up|" {
		t.Errorf("the guest was stopped for a checkpoint: %q", got)
	}
	res, err = d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{Scope: []string{"layer:files"}}, nil)
	if err != nil || res.Stages[1].Notes != unit+" stopped" || w.Do(t, "sh cat /tmp/up") != "up|" {
		t.Errorf("the guest was stopped for files: %v, %+v", err, res.Stages)
	}
	run(t, s, "systemctl", "is-active", unit)
	if cp, err = d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceStop}); err != nil || !cp.Quiesced {
		t.Fatalf("%+v, %v", cp, err)
	}
	w.WaitReady(t)
	run(t, s, "systemctl", "is-active", unit)
	if got := w.Do(t, "sh cat /tmp/up 2>/dev/null; echo ."); got != ".|" {
		t.Errorf("the guest was not stopped: %q", got)
	}
}

// TestDomainRefusals: who may name a domain, and what cannot be an app's.
func testDomainRefusals(t *testing.T) {
	t.Parallel()
	w := newVMWorld(t, nil)
	other := workspace(t)
	if _, err := w.d.AddApp(t.Context(), root, ipc.App{Slug: "other", Workspace: other, Domain: w.Name, URI: w.host.URI}); errs.KindOf(err) != errs.Conflict {
		t.Errorf("a domain of another app: %v", err)
	}
	if _, err := w.d.AddApp(t.Context(), root, ipc.App{Slug: "other", Workspace: other, Domain: "nosuch", URI: w.host.URI}); errs.KindOf(err) != errs.NotFound || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("a domain that is not there: %v", err)
	}
	if _, err := w.d.AddApp(t.Context(), root, ipc.App{Slug: "other", Workspace: other, Domain: "x", URI: "qemu:///system?socket=/nowhere"}); errs.KindOf(err) != errs.Unavailable {
		t.Errorf("no libvirtd: %v", err)
	}

	// The same by another spelling, and another domain with the same disk.
	spelled := strings.Replace(w.host.URI, "qemu:", "qemu+unix:", 1)
	if _, err := w.d.AddApp(t.Context(), root, ipc.App{Slug: "other", Workspace: other, Domain: w.Name, URI: spelled}); errs.KindOf(err) != errs.Conflict || !slices.ContainsFunc(w.Disks, func(disk string) bool { return strings.Contains(err.Error(), disk) }) {
		t.Errorf("a domain of another app, spelled differently: %v", err)
	}
	w.create(t, ipc.CreateRequest{})
	twin := w.host.NewGuest(t, "twin", disktest.GuestOptions{SizeMiB: 4, KeepBare: true})
	link := filepath.Join(filepath.Dir(twin.Disks[0]), "link.qcow2")
	if err := os.Link(w.Disks[0], link); err == nil { // an immutable file has no more names
		t.Error("a frozen image was given another name")
	}
	if err := os.Symlink(w.Disks[0], link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{w.Disks[0], link, w.head(t)} {
		if _, err := w.conn.DomainDefineXML(strings.Replace(twin.XML, twin.Disks[0], path, 1)); err != nil {
			t.Fatal(err)
		}
		_, err := w.d.AddApp(t.Context(), root, ipc.App{Slug: "other", Workspace: other, Domain: "twin", URI: w.host.URI})
		if errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), "the app shop") || errs.HintOf(err) == "" {
			t.Errorf("another domain with the disk %s: %v", path, err)
		}
		old, err := w.conn.LookupDomainByName("twin")
		if err == nil {
			err = old.Undefine()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.conn.DomainDefineXML(twin.XML); err != nil {
		t.Fatal(err)
	}
	if _, err := w.d.AddApp(t.Context(), root, ipc.App{Slug: "other", Workspace: other, Domain: "twin", URI: w.host.URI}); err != nil {
		t.Errorf("a domain with a disk of its own: %v", err)
	}
	if err := w.d.RemoveApp(t.Context(), root, "other", true); err != nil {
		t.Error(err)
	}

	host, err := daemon.Open(t.Context(), daemon.Options{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close(t, host)
	plain := ipc.Caller{UID: 65534, PID: 2}
	if err := os.Chown(other, plain.UID, 65534); err != nil {
		t.Fatal(err)
	}
	_, err = host.AddApp(t.Context(), plain, ipc.App{Slug: "other", Workspace: other, Domain: w.Name, URI: w.host.URI})
	if errs.KindOf(err) != errs.Denied || !strings.Contains(errs.HintOf(err), "--domain "+w.Name) {
		t.Errorf("a plain user names a domain: %v (%s)", err, errs.HintOf(err))
	}
	if _, err := host.AddApp(t.Context(), plain, ipc.App{Slug: "other", Workspace: other}); err != nil {
		t.Fatal(err)
	}
	_, err = host.SetApp(t.Context(), plain, "other", ipc.AppChange{Domain: &w.Name, URI: &w.host.URI})
	if errs.KindOf(err) != errs.Denied {
		t.Errorf("a plain user changes to a domain: %v", err)
	}
	if _, err := host.App(t.Context(), ipc.Caller{UID: 65533, PID: 3}, "other"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("another user sees the app: %v", err)
	}
}

// TestPurgedDomain: an app that is purged gives its domain the disks back that it came with,
// holding what the guest wrote last, once the domain is off.
func testPurgedDomain(t *testing.T) {
	t.Parallel()
	w := newVMWorld(t, nil)
	for _, word := range []string{"one", "two"} {
		w.put(t, word)
		w.create(t, ipc.CreateRequest{})
	}
	w.put(t, "three")
	pool := filepath.Dir(w.head(t))
	err := w.d.RemoveApp(t.Context(), root, "shop", true)
	if errs.KindOf(err) != errs.Busy || !strings.Contains(errs.HintOf(err), "virsh shutdown") {
		t.Errorf("purged while the guest runs: %v", err)
	}
	if cps := listed(t, w.d); len(cps) != 2 {
		t.Errorf("%d checkpoints are left", len(cps))
	}
	if err := w.domain(t).Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := w.d.RemoveApp(t.Context(), root, "shop", true); err != nil {
		t.Fatal(err)
	}
	if got := w.head(t); got != w.Disks[0] {
		t.Errorf("the domain's disk is %s, and was %s", got, w.Disks[0])
	}
	if left, err := os.ReadDir(pool); err == nil {
		t.Errorf("files are left: %v", left)
	}
	for _, path := range w.Disks { // it can be written to, and rests on nothing
		if out, err := exec.Command("qemu-img", "info", path).CombinedOutput(); err != nil || strings.Contains(string(out), "backing") {
			t.Errorf("%s, %v", out, err)
		}
	}
	w.boot(t)
	if got := w.Do(t, "get"); got != "three three" {
		t.Errorf("the guest reads %q", got)
	}
}

// stored is the state that a checkpoint's disks hold, read without a guest
// from the images that the driver's record names.
func (w *vmWorld) stored(t *testing.T, app ipc.AppID, cp ipc.Checkpoint) string {
	t.Helper()
	var words []string
	for _, dev := range []string{"vda", "vdb"} {
		raw := filepath.Join(t.TempDir(), dev)
		text, err := besideMerges(t, func() ([]byte, error) {
			var tree struct {
				Layers map[string]struct {
					Files map[string]struct{ Path string }
				}
				Snapshots map[string]struct{ Layer string }
			}
			check(t, durable.ReadJSON(filepath.Join(w.state(), "apps", string(app), "disk", "tree.json"), &tree))
			path := tree.Layers[tree.Snapshots[*cp.VMSnapshotID].Layer].Files[dev].Path
			return exec.Command("qemu-img", "convert", "-U", "-t", "unsafe", "-f", "qcow2", "-O", "raw", path, raw).CombinedOutput()
		})
		if err != nil {
			t.Fatalf("qemu-img: %v: %s", err, text)
		}
		out, err := exec.Command("debugfs", "-R", "cat /value", raw).Output()
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, strings.TrimSpace(string(out)))
	}
	if words[0] != words[1] {
		t.Fatalf("%s: the two disks hold %q", cp.ID, words)
	}
	return words[0]
}
