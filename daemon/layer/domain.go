package layer

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/disk"
	diskguest "mulligan/snap/disk/guest"
	"mulligan/snap/disk/rbd"
	"mulligan/systemd"
)

// SwitchOff bounds how long it takes to switch off a domain whose guest did not shut down.
const SwitchOff = 20 * time.Second

// disks is the driver of a domain's disks: package disk for qcow2 files, and package rbd for images on Ceph.
type disks interface {
	snap.Driver
	// Check returns an error if the domain cannot be captured.
	Check(ctx context.Context) error
	// Places lists the paths on the host that belong to the domain. RecordedPlaces returns the list that the records have.
	Places(ctx context.Context) ([]string, error)
	RecordedPlaces() ([]string, error)
	// Claim returns the images on the host that belong to the domain.
	Claim() disk.Claim
	// Flattens returns an error if Flatten could not begin. Flatten removes everything that the driver has made.
	Flattens(ctx context.Context) error
	Flatten(ctx context.Context) error
	Close() error
}

// openDisks opens the driver for the disks that an app's domain has: the one that has records of them, or else the one for the kind that
// the domain's definition says.
func openDisks(b *Binder, rec store.App) (disks, error) {
	onCeph := rbd.Holds(b.diskState(rec.ID))
	if !onCeph && !disk.Holds(b.diskState(rec.ID)) {
		onCeph = diskguest.OnCeph(b.LibvirtURI(rec), rec.Domain)
	}
	if onCeph {
		return rbd.New(rbd.Config{
			App: string(rec.ID), Domain: rec.Domain, URI: b.LibvirtURI(rec), StateDir: b.diskState(rec.ID), Access: rbd.Access(b.opt.Ceph),
			Shutdown: diskguest.Shutdown(rec.Shutdown), ShutdownTimeout: b.opt.StopTimeout, Failpoint: b.opt.Failpoint, Log: b.opt.Log,
		})
	}
	return disk.New(b.DiskConfig(rec))
}

// recordedClaim returns the claim of a driver that is not open, from its records.
func recordedClaim(dir string) (disk.Claim, error) {
	if rbd.Holds(dir) {
		return rbd.Recorded(dir)
	}
	return disk.Recorded(dir)
}

// guest is the driver of an app's domain, with its state.
type guest struct {
	driver disks
	places []string // paths on the host that belong to the domain and not to the files layer
	// away is the reason why the domain cannot be used at present: libvirt cannot be reached, or the domain cannot be captured in
	// its present form. The places then come from the records.
	away error
}

// guestOf opens the driver of an app's domain; nil if the app has none. If the domain cannot be used and has no records, it
// returns the reason as an error.
func (b *Binder) guestOf(ctx context.Context, rec store.App) (*guest, error) {
	if rec.Domain == "" {
		b.Domains.Drop(rec.ID)
		return nil, nil
	}
	driver, err := openDisks(b, rec)
	if err != nil {
		return nil, err
	}
	g := &guest{driver: driver}
	if g.places, g.away = b.reach(ctx, rec, driver); g.away == nil {
		return g, nil
	}
	if g.places, err = driver.RecordedPlaces(); err != nil {
		return nil, errs.Also(g.away, driver.Close())
	}
	return g, nil
}

// reach checks whether an app's domain can be used, and records that its disks belong to the app.
func (b *Binder) reach(ctx context.Context, rec store.App, driver disks) (places []string, err error) {
	err = driver.Check(ctx)
	if err == nil {
		err = b.claimDisks(rec, driver)
	}
	if err == nil {
		places, err = driver.Places(ctx)
	}
	return places, errs.Wrap(errs.Failed, "domain "+rec.Domain, err)
}

// DiskConfig returns the configuration of the driver of an app's domain whose disks are files.
func (b *Binder) DiskConfig(rec store.App) disk.Config {
	return disk.Config{
		App: string(rec.ID), Domain: rec.Domain, URI: b.LibvirtURI(rec), StateDir: b.diskState(rec.ID),
		Shutdown: diskguest.Shutdown(rec.Shutdown), ShutdownTimeout: b.opt.StopTimeout, Failpoint: b.opt.Failpoint, Log: b.opt.Log,
	}
}

// diskState returns the folder with the records of an app's domain.
func (b *Binder) diskState(id ipc.AppID) string { return filepath.Join(b.StateDir(id), "disk") }

// domains has the open drivers of the apps' domains. Safe for concurrent use.
type domains struct {
	mu sync.Mutex
	of map[ipc.AppID]disks
}

func (s *domains) Drop(id ipc.AppID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, id)
}

// claimDisks records that the images of a domain's disks belong to the app. It refuses a domain with an image of another app's
// domain, because both guests would write diverging overlays on it.
func (b *Binder) claimDisks(rec store.App, driver disks) error {
	others := b.apps()
	related := relatives(others, rec)
	b.Domains.mu.Lock()
	defer b.Domains.mu.Unlock()
	mine := driver.Claim()
	for _, other := range others {
		if other.Domain == "" || related(other.ID) { // also the app itself
			continue
		}
		var theirs disk.Claim
		if open := b.Domains.of[other.ID]; open != nil {
			theirs = open.Claim()
		} else if recorded, err := recordedClaim(b.diskState(other.ID)); err == nil { // otherwise that app reports the error itself
			theirs = recorded
		}
		if path := mine.Clash(theirs); path != "" {
			return errs.New(errs.Conflict, "", "its disk image %s belongs to the domain %s of the app %s too", path, other.Domain, other.Slug).
				WithHint("a disk belongs to one app only; give this domain a copy of its own: qemu-img convert -O qcow2")
		}
	}
	if b.Domains.of == nil {
		b.Domains.of = map[ipc.AppID]disks{}
	}
	b.Domains.of[rec.ID] = driver
	return nil
}

// FoldDisks restores the original disks of a purged app's domain. With begin, it only checks whether that is possible.
func (b *Binder) FoldDisks(ctx context.Context, s *Setup, begin bool) error {
	driver, _ := s.anyDisks()
	if driver == nil {
		return nil
	}
	fold := driver.Flatten
	if begin {
		fold = driver.Flattens
	}
	err := fold(ctx)
	switch errs.KindOf(err) {
	case errs.Conflict, errs.NotFound, errs.Unavailable: // the domain is another one now, whose disks do not belong to the app
		b.opt.Log.Warn("the disks of a purged app's domain stay as they are", "app", s.Rec.Slug, "err", err)
		return nil
	}
	return err
}

// LibvirtURI returns the libvirt URI of an app's domain.
func (b *Binder) LibvirtURI(rec store.App) string {
	switch {
	case rec.URI != "":
		return rec.URI
	case b.opt.User && os.Geteuid() != 0:
		return "qemu:///session"
	}
	return "qemu:///system"
}

// diskLayer returns the layer of an app's domain, and the paths in the workspace that belong to it and not to the files layer.
func (b *Binder) diskLayer(rec store.App, g *guest) (Layer, []string) {
	var skip []string
	for _, p := range g.places {
		if below, ok := strings.CutPrefix(p, rec.Workspace+"/"); ok {
			skip = append(skip, below)
		}
	}
	l := Layer{Name: snap.Disk, Kind: Disk, Family: "libvirt", About: "libvirt domain " + rec.Domain, Driver: g.driver}
	if g.away != nil {
		l.Driver = &Held{Driver: g.driver, Why: g.away, Reach: func(ctx context.Context) error {
			_, err := b.reach(ctx, rec, g.driver)
			return err
		}}
	}
	return l, skip
}

// withDomain returns the unit of an app with a domain: the app's unit on the host, if there is one, and the domain.
func (b *Binder) withDomain(ctx context.Context, rec store.App, unit systemd.Unit, driver disks) (systemd.Unit, error) {
	vm := domainUnit{unitOf(driver)}
	m := &Machine{Vm: vm, Host: unit, note: filepath.Join(b.StateDir(rec.ID), "machine.json")}
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
		m.Host, m.name = nil, service.Name() // the unit has done its work when the domain is up
	case starts:
		m.HostStarts = true
	}
	return m, nil
}
