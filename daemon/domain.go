package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/store"
	"mulligan/durable"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/disk"
	"mulligan/systemd"
)

// switchOff is how long it may take to switch a domain off whose guest did not go down.
const switchOff = 20 * time.Second

// guest is the driver of an app's domain.
type guest struct {
	driver *disk.Driver
	places []string // paths on the host that are the domain's and not the files layer's
	// away is why the domain cannot be worked with at present: libvirt cannot be reached,
	// or the domain cannot be captured as it is. The places are those of the records then.
	away error
}

// guestOf opens the driver of an app's domain; nil where the app has none. A domain that
// cannot be worked with, and was never known, is an error that says why.
func (d *Daemon) guestOf(ctx context.Context, rec store.App) (*guest, error) {
	if rec.Domain == "" {
		d.domains.drop(rec.ID)
		return nil, nil
	}
	driver, err := disk.New(d.diskConfig(rec))
	if err != nil {
		return nil, err
	}
	g := &guest{driver: driver}
	if g.places, g.away = d.reach(ctx, rec, driver); g.away == nil {
		return g, nil
	}
	if g.places, err = driver.RecordedPlaces(); err != nil {
		return nil, errs.Also(g.away, driver.Close())
	}
	return g, nil
}

// reach looks whether an app's domain can be worked with, and notes that its disks are the app's.
func (d *Daemon) reach(ctx context.Context, rec store.App, driver *disk.Driver) (places []string, err error) {
	_, err = driver.Domain(ctx)
	if err == nil {
		err = d.claimDisks(rec, driver)
	}
	if err == nil {
		places, err = driver.Places(ctx)
	}
	return places, errs.Wrap(errs.Failed, "domain "+rec.Domain, err)
}

// diskConfig says how the driver of an app's domain works.
func (d *Daemon) diskConfig(rec store.App) disk.Config {
	return disk.Config{
		App: string(rec.ID), Domain: rec.Domain, URI: d.libvirtURI(rec), StateDir: d.diskState(rec.ID),
		Shutdown: disk.Shutdown(rec.Shutdown), ShutdownTimeout: d.opt.StopTimeout, Failpoint: d.opt.Failpoint, Log: d.opt.Log,
	}
}

// diskState is the folder of the records of an app's domain.
func (d *Daemon) diskState(id ipc.AppID) string { return filepath.Join(d.stateDir(id), "disk") }

// domains are the drivers of the apps' domains, as far as they are open. Safe for concurrent use.
type domains struct {
	mu sync.Mutex
	of map[ipc.AppID]*disk.Driver
}

func (s *domains) drop(id ipc.AppID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, id)
}

// claimDisks notes that the images of a domain's disks are the app's, and refuses a domain
// with an image that another app's domain has: the two would go on from it apart.
func (d *Daemon) claimDisks(rec store.App, driver *disk.Driver) error {
	apps := d.all()
	d.domains.mu.Lock()
	defer d.domains.mu.Unlock()
	mine := driver.Claim()
	for _, a := range apps {
		other := a.rec()
		if other.ID == rec.ID || other.Domain == "" {
			continue
		}
		var theirs disk.Claim
		if open := d.domains.of[other.ID]; open != nil {
			theirs = open.Claim()
		} else if recorded, err := disk.Recorded(d.diskState(other.ID)); err == nil { // else that app says so itself
			theirs = recorded
		}
		if path := mine.Clash(theirs); path != "" {
			return errs.New(errs.Conflict, "", "its disk image %s belongs to the domain %s of the app %s too", path, other.Domain, other.Slug).
				WithHint("a disk has one app; give this domain a copy of its own: qemu-img convert -O qcow2")
		}
	}
	if d.domains.of == nil {
		d.domains.of = map[ipc.AppID]*disk.Driver{}
	}
	d.domains.of[rec.ID] = driver
	return nil
}

// foldDisks gives the domain of an app that is purged the disks back that it came with;
// begin: it says whether that can be done.
func (d *Daemon) foldDisks(ctx context.Context, a *app, begin bool) error {
	l, _ := a.layer(snap.Disk)
	if h, ok := l.driver.(*heldUp); ok {
		l.driver = h.Driver
	}
	driver, ok := l.driver.(*disk.Driver)
	if !ok {
		return nil
	}
	fold := driver.Flatten
	if begin {
		fold = driver.Flattens
	}
	err := fold(ctx)
	switch errs.KindOf(err) {
	case errs.Conflict, errs.NotFound, errs.Unavailable: // the domain is not the one that it was: its disks are not the app's
		d.opt.Log.Warn("the disks of a purged app's domain stay as they are", "app", a.rec().Slug, "err", err)
		return nil
	}
	return err
}

// libvirtURI is where an app's domain is looked for.
func (d *Daemon) libvirtURI(rec store.App) string {
	switch {
	case rec.URI != "":
		return rec.URI
	case d.opt.User && os.Geteuid() != 0:
		return "qemu:///session"
	}
	return "qemu:///system"
}

// diskLayer is the layer of an app's domain, and the paths in the workspace
// that are its and not the files layer's.
func (d *Daemon) diskLayer(rec store.App, g *guest) (layer, []string) {
	var skip []string
	for _, p := range g.places {
		if below, ok := strings.CutPrefix(p, rec.Workspace+"/"); ok {
			skip = append(skip, below)
		}
	}
	l := layer{name: snap.Disk, kind: "libvirt domain " + rec.Domain, prefix: "vm-", driver: g.driver}
	if g.away != nil {
		l.driver = &heldUp{Driver: g.driver, why: g.away, reach: func(ctx context.Context) error {
			_, err := d.reach(ctx, rec, g.driver)
			return err
		}}
	}
	return l, skip
}

// checkDomain makes sure that the caller may name the domain, and that no other
// app has it. In a host daemon that is root's; a user's daemon may do what
// libvirt lets that user do, and finds out when it opens the domain.
func (d *Daemon) checkDomain(who ipc.Caller, id ipc.AppID, spec ipc.App) error {
	if spec.Domain == "" {
		return nil
	}
	if !d.Administers(who) {
		return errs.New(errs.Denied, "", "domains are named by root").
			WithHint("ask an administrator: mulligan app add --slug %s --dir %s --domain %s, with owner = %q in an app file", spec.Slug, spec.Workspace, spec.Domain, accounts.UserName(who.UID))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, other := range d.apps {
		if rec := other.rec(); rec.ID != id && rec.Domain == spec.Domain && d.libvirtURI(rec) == d.libvirtURI(store.App{App: spec}) {
			return errs.New(errs.Conflict, "", "domain %s belongs to another app", spec.Domain).WithHint("a domain has one app: mulligan app list")
		}
	}
	return nil
}

// withDomain is the unit of an app that has a domain: what of the host's
// belongs to it, if anything, and the domain.
func (d *Daemon) withDomain(ctx context.Context, rec store.App, unit systemd.Unit, driver *disk.Driver) (systemd.Unit, error) {
	vm := domainUnit{driver.Unit()}
	m := &machine{vm: vm, host: unit, note: filepath.Join(d.stateDir(rec.ID), "machine.json")}
	service, ok := unit.(*systemd.Service)
	if !ok { // none, or a command
		return m, nil
	}
	oneshot, starts, err := service.Launches(ctx, "virsh", "start", rec.Domain)
	if err != nil {
		return nil, err
	}
	switch {
	case starts && oneshot:
		m.host, m.name = nil, service.Name() // it has done its work once the domain is up
	case starts:
		m.hostStarts = true
	}
	return m, nil
}

// domainUnit is a domain in the words of a unit.
type domainUnit struct{ u *disk.Unit }

func (v domainUnit) Name() string { return "domain " + v.u.Name() }

func (v domainUnit) Start(ctx context.Context) error { return v.u.Start(ctx) }
func (v domainUnit) Stop(ctx context.Context) error  { return v.u.Stop(ctx) }

func (v domainUnit) State(ctx context.Context) (systemd.Status, error) {
	s, err := v.u.State(ctx)
	return systemd.Status{Active: s.Active, Sub: s.Sub, Asked: s.Active == "inactive"}, err
}

// machine is an app's domain together with what runs on the host beside it.
type machine struct {
	vm         systemd.Unit
	host       systemd.Unit // nil: the domain is all there is
	hostStarts bool         // starting host starts the domain
	name       string       // of the unit that the domain goes by, if any
	note       string       // file: what a stop found running
}

// wasUp is what Stop found running, and so what Start starts. It is a file, so
// that the next process knows it too.
type wasUp struct {
	VM   bool `json:"vm"`
	Host bool `json:"host"`
}

// Name names what is stopped and started.
func (m *machine) Name() string {
	switch {
	case m.name != "":
		return m.name + " (" + m.vm.Name() + ")"
	case m.host == nil:
		return m.vm.Name()
	}
	return m.host.Name() + " and " + m.vm.Name()
}

// State is running where either of the two is; where neither runs, it is that of the
// one that is meant to be up.
func (m *machine) State(ctx context.Context) (systemd.Status, error) {
	vm, err := m.vm.State(ctx)
	if err != nil || m.host == nil || vm.Running() {
		return vm, err
	}
	host, err := m.host.State(ctx)
	if err != nil || host.Running() || vm.Intent() != systemd.Up && host.Intent() == systemd.Up {
		return host, err
	}
	return vm, nil
}

// Stop stops the unit, then the domain where that did not.
func (m *machine) Stop(ctx context.Context) error {
	if err := m.remember(ctx, true); err != nil {
		return err
	}
	if m.host != nil {
		if err := m.host.Stop(ctx); err != nil {
			return err
		}
	}
	return m.vm.Stop(ctx)
}

// Pause stops what runs on the host, and leaves the domain as it is.
func (m *machine) Pause(ctx context.Context) error {
	if m.host == nil {
		return nil
	}
	if err := m.remember(ctx, false); err != nil {
		return err
	}
	return m.host.Stop(ctx)
}

// remember notes what is running, in addition to what an earlier stop noted
// that nobody started since. Only where the domain is to be stopped must its state be known.
func (m *machine) remember(ctx context.Context, stopsVM bool) error {
	was, err := m.remembered()
	if err != nil {
		return err
	}
	s, err := m.vm.State(ctx)
	if err != nil && stopsVM {
		return err
	}
	was.VM = was.VM || err == nil && s.Running()
	if m.host != nil {
		s, err := m.host.State(ctx)
		if err != nil {
			return err
		}
		was.Host = was.Host || s.Intent() == systemd.Up
	}
	return m.write(was)
}

func (m *machine) remembered() (was wasUp, err error) {
	data, err := os.ReadFile(m.note)
	if errors.Is(err, os.ErrNotExist) {
		return was, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &was)
	}
	return was, errs.Wrap(errs.Failed, "read what ran", err)
}

// write replaces the note, durably.
func (m *machine) write(was wasUp) error {
	data, err := json.Marshal(was)
	if err != nil {
		return err
	}
	return errs.Wrap(errs.Failed, "note what ran", durable.WriteFile(m.note, data, 0o600))
}

// Start starts what Stop found running; without a Stop before it, all. A guest
// whose memory was restored goes on before anything could boot it.
func (m *machine) Start(ctx context.Context) error {
	was, err := m.remembered()
	if err != nil {
		return err
	}
	if was == (wasUp{}) {
		was = wasUp{VM: true, Host: true}
	}
	steps := []func() error{
		func() error { return startIf(ctx, m.vm, was.VM) },
		func() error { return startIf(ctx, m.host, was.Host) },
	}
	if m.hostStarts { // and would fail on a domain that is up
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if err := os.Remove(m.note); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.Wrap(errs.Failed, "forget what ran", err)
	}
	return nil
}

func startIf(ctx context.Context, u systemd.Unit, wanted bool) error {
	if u == nil || !wanted {
		return nil
	}
	return u.Start(ctx)
}

// hostPart is what of the app a capture stops when it is not asked to stop
// everything: a guest's filesystems are frozen for a moment instead. nil: nothing.
func (a *app) hostPart() systemd.Unit {
	if m, ok := a.unit().(*machine); ok {
		return m.host
	}
	return a.unit()
}

// ofGuest returns err, with which the app's unit was looked at, as an error of the layer of its
// domain where it is the domain that cannot be looked at.
func (a *app) ofGuest(ctx context.Context, err error) error {
	m, ok := a.unit().(*machine)
	l, disks := a.layer(snap.Disk)
	if !ok || !disks {
		return err
	}
	if _, e := m.vm.State(ctx); e == nil {
		return err
	}
	return &captureError{l, err}
}

// pauseHost stops what of an app runs on the host, and not its domain.
func (d *Daemon) pauseHost(ctx context.Context, a *app) error {
	m, ok := a.unit().(*machine)
	if !ok {
		return d.stopUnit(ctx, a)
	}
	ctx, cancel := context.WithTimeout(ctx, d.opt.StopTimeout)
	defer cancel()
	if err := d.opt.Failpoint.At("stop unit"); err != nil {
		return err
	}
	return m.Pause(ctx)
}

// close lets go of what an app's drivers hold open.
func (s *setup) close() error {
	var all []error
	for _, l := range s.layers {
		if c, ok := l.driver.(io.Closer); ok {
			all = append(all, c.Close())
		}
	}
	return errors.Join(all...)
}
