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
	"mulligan/systemd"
)

// SwitchOff is how long it may take to switch a domain off whose guest did not go down.
const SwitchOff = 20 * time.Second

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
func (b *Binder) guestOf(ctx context.Context, rec store.App) (*guest, error) {
	if rec.Domain == "" {
		b.Domains.Drop(rec.ID)
		return nil, nil
	}
	driver, err := disk.New(b.DiskConfig(rec))
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

// reach looks whether an app's domain can be worked with, and notes that its disks are the app's.
func (b *Binder) reach(ctx context.Context, rec store.App, driver *disk.Driver) (places []string, err error) {
	_, err = driver.Domain(ctx)
	if err == nil {
		err = b.claimDisks(rec, driver)
	}
	if err == nil {
		places, err = driver.Places(ctx)
	}
	return places, errs.Wrap(errs.Failed, "domain "+rec.Domain, err)
}

// DiskConfig says how the driver of an app's domain works.
func (b *Binder) DiskConfig(rec store.App) disk.Config {
	return disk.Config{
		App: string(rec.ID), Domain: rec.Domain, URI: b.LibvirtURI(rec), StateDir: b.diskState(rec.ID),
		Shutdown: disk.Shutdown(rec.Shutdown), ShutdownTimeout: b.opt.StopTimeout, Failpoint: b.opt.Failpoint, Log: b.opt.Log,
	}
}

// diskState is the folder of the records of an app's domain.
func (b *Binder) diskState(id ipc.AppID) string { return filepath.Join(b.StateDir(id), "disk") }

// domains are the drivers of the apps' domains, as far as they are open. Safe for concurrent use.
type domains struct {
	mu sync.Mutex
	of map[ipc.AppID]*disk.Driver
}

func (s *domains) Drop(id ipc.AppID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, id)
}

// claimDisks notes that the images of a domain's disks are the app's, and refuses a domain
// with an image that another app's domain has: the two would go on from it apart.
func (b *Binder) claimDisks(rec store.App, driver *disk.Driver) error {
	others := b.apps()
	b.Domains.mu.Lock()
	defer b.Domains.mu.Unlock()
	mine := driver.Claim()
	for _, other := range others {
		if other.ID == rec.ID || other.Domain == "" {
			continue
		}
		var theirs disk.Claim
		if open := b.Domains.of[other.ID]; open != nil {
			theirs = open.Claim()
		} else if recorded, err := disk.Recorded(b.diskState(other.ID)); err == nil { // else that app says so itself
			theirs = recorded
		}
		if path := mine.Clash(theirs); path != "" {
			return errs.New(errs.Conflict, "", "its disk image %s belongs to the domain %s of the app %s too", path, other.Domain, other.Slug).
				WithHint("a disk has one app; give this domain a copy of its own: qemu-img convert -O qcow2")
		}
	}
	if b.Domains.of == nil {
		b.Domains.of = map[ipc.AppID]*disk.Driver{}
	}
	b.Domains.of[rec.ID] = driver
	return nil
}

// FoldDisks gives the domain of an app that is purged the disks back that it came with;
// begin: it says whether that can be done.
func (b *Binder) FoldDisks(ctx context.Context, s *Setup, begin bool) error {
	l, _ := s.Layer(snap.Disk)
	if h, ok := l.Driver.(*Held); ok {
		l.Driver = h.Driver
	}
	driver, ok := l.Driver.(*disk.Driver)
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
		b.opt.Log.Warn("the disks of a purged app's domain stay as they are", "app", s.Rec.Slug, "err", err)
		return nil
	}
	return err
}

// LibvirtURI is where an app's domain is looked for.
func (b *Binder) LibvirtURI(rec store.App) string {
	switch {
	case rec.URI != "":
		return rec.URI
	case b.opt.User && os.Geteuid() != 0:
		return "qemu:///session"
	}
	return "qemu:///system"
}

// diskLayer is the layer of an app's domain, and the paths in the workspace
// that are its and not the files layer's.
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

// withDomain is the unit of an app that has a domain: what of the host's
// belongs to it, if anything, and the domain.
func (b *Binder) withDomain(ctx context.Context, rec store.App, unit systemd.Unit, driver *disk.Driver) (systemd.Unit, error) {
	vm := domainUnit{driver.Unit()}
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
		m.Host, m.name = nil, service.Name() // it has done its work once the domain is up
	case starts:
		m.HostStarts = true
	}
	return m, nil
}
