// Package rbd is the driver for the disks of a libvirt domain that are RBD images of a Ceph cluster.
//
// A snapshot is one RBD snapshot of each disk, all made while the guest stands still. A restore makes a clone of each, under a name that
// is used once, and defines the domain with the clones. Nothing is copied: what a checkpoint and a rollback cost does not depend on the
// size of the disks. The program rbd does the work. DESIGN.md has the invariants and the crash windows.
package rbd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

const driverName = "rbd"

// Config names the domain of a driver.
type Config struct {
	App             string // the app's id: a part of names in the cluster
	Domain          string // its name
	URI             string // of libvirt: qemu:///system if ""
	StateDir        string // a folder of the daemon for this driver's records alone
	Access          Access
	Shutdown        guest.Shutdown // guest.Clean if ""
	ShutdownTimeout time.Duration  // 60 s if 0
	QuiesceTimeout  time.Duration  // of the guest agent, to freeze and to thaw; 5 s if 0
	// SnapshotTimeout bounds how long a guest stands still for the snapshots; 15 s if 0.
	SnapshotTimeout time.Duration
	Failpoint       failpoint.Hook `json:"-"` // for tests: called before each step that has a lasting effect, also by several goroutines
	Log             *slog.Logger   `json:"-"`
}

// Driver captures and restores the disks of one domain.
type Driver struct {
	mu  sync.Mutex // held during each method, except during the long work of Maintain
	cfg Config
	dom guest.Domain
	rec *record // nil: it was not read yet, or does not exist; changed by keep

	cluster cluster // as the domain's definition says, once it was read
	halfway []string
	diffs   diffCache

	maintain sync.Mutex // held during Maintain
	claim    atomic.Pointer[layertree.Claim]
	remover  remover
	release  releaser

	life context.Context // ends with Close
	end  context.CancelFunc
}

var (
	_ snap.Driver       = (*Driver)(nil)
	_ snap.LiveCapturer = (*Driver)(nil)
	_ snap.Differ       = (*Driver)(nil)
	_ snap.Maintainer   = (*Driver)(nil)

	_ snap.MemoryCapturer = (*Driver)(nil)
)

var nameOfApp = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// New returns a driver. It does not look at the domain.
func New(cfg Config) (*Driver, error) {
	const op = "open driver of disks on Ceph"
	if !nameOfApp.MatchString(cfg.App) {
		return nil, errs.New(errs.Invalid, op, "%q is not a name", cfg.App)
	}
	if cfg.Domain == "" || strings.ContainsAny(cfg.Domain, "/\x00\n") {
		return nil, errs.New(errs.Invalid, op, "%q is not the name of a domain", cfg.Domain)
	}
	if !filepath.IsAbs(cfg.StateDir) {
		return nil, errs.New(errs.Invalid, op, "an absolute state folder is needed")
	}
	cfg.Shutdown = cmp.Or(cfg.Shutdown, guest.Clean)
	if err := cfg.Shutdown.Check(op); err != nil {
		return nil, err
	}
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, time.Minute)
	cfg.QuiesceTimeout = cmp.Or(cfg.QuiesceTimeout, 5*time.Second)
	cfg.SnapshotTimeout = cmp.Or(cfg.SnapshotTimeout, 15*time.Second)
	cfg.URI = cmp.Or(cfg.URI, "qemu:///system")
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	d := &Driver{cfg: cfg, dom: guest.Domain{Name: cfg.Domain, URI: cfg.URI}}
	d.remover, d.release.d = remover{d, map[string]bool{}}, d
	d.life, d.end = context.WithCancel(context.Background())
	return d, nil
}

// Close ends the driver's work in the background and its connection to libvirt.
func (d *Driver) Close() error {
	d.end()
	d.release.work.Wait()
	d.maintain.Lock() // afterwards another driver may use the records
	defer d.maintain.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dom.Close()
}

// CapturesLive returns true: the snapshots of a running domain are made while the guest stands still.
func (d *Driver) CapturesLive() bool { return true }

// begin locks d.mu, reads the record and checks the context. If there is no error, the caller must unlock d.mu.
func (d *Driver) begin(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, op, err)
	}
	d.mu.Lock()
	if d.rec == nil {
		rec, err := readRecord(op, d.cfg.StateDir)
		if err != nil {
			d.mu.Unlock()
			return err
		}
		d.keep(rec)
	}
	return nil
}

// keep makes rec the driver's record.
func (d *Driver) keep(rec *record) {
	c := claimOf(d.cfg.Domain, rec)
	d.rec = rec
	d.claim.Store(&c)
	if rec != nil {
		args := argumentsFor(d.cfg.Access, rec.Reach)
		d.cluster.args.Store(&args)
	}
}

// update changes the record, first on disk. If that fails, nothing has changed.
func (d *Driver) update(change func(r *record)) error {
	next, err := d.rec.clone()
	if err != nil {
		return err
	}
	change(next)
	if err := d.cfg.Failpoint.At("save"); err != nil {
		return err
	}
	if err := next.write(d.cfg.StateDir); err != nil {
		return err
	}
	d.keep(next)
	return nil
}

// snapshot finds a snapshot.
func (d *Driver) snapshot(op string, id snap.SnapshotID) (*snapshot, error) {
	if d.rec != nil {
		if s := d.rec.Snapshots[id]; s != nil {
			return s, nil
		}
	}
	return nil, errs.New(errs.NotFound, op, "no snapshot %s of domain %s", id, d.cfg.Domain).
		WithHint("list the checkpoints to see which there are")
}

// open returns libvirt's handle of the domain, after it has recovered what an earlier process left unfinished and checked that the
// domain agrees with the record. It adopts a domain that has no record yet. The caller holds the lock, and must free the machine.
func (d *Driver) open(ctx context.Context, op string) (virt.Machine, error) {
	uuid := ""
	if d.rec != nil {
		uuid = d.rec.UUID
	}
	m, err := d.dom.Machine(op, uuid)
	if err != nil {
		return nil, err
	}
	if err = d.opened(ctx, op, m); err != nil {
		m.Free()
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return m, nil
}

func (d *Driver) opened(ctx context.Context, op string, m virt.Machine) error {
	if d.rec != nil {
		if err := d.recover(ctx, op, m); err != nil {
			return err
		}
	}
	kept, live, err := d.dom.Both(op, m)
	if err != nil {
		return err
	}
	if !kept.OnCeph() {
		return errs.New(errs.Conflict, op, "the disks of domain %s are not on Ceph any more", d.cfg.Domain).
			WithHint("nothing is lost: virsh edit it back; or app remove and app add, which starts a new history")
	}
	if err := d.reach(op, kept); err != nil {
		return err
	}
	if d.rec == nil {
		if err := d.adopt(ctx, op, m); err != nil {
			return err
		}
	}
	if err := d.follow(ctx, op, kept, live); err != nil {
		return err
	}
	for which, s := range map[string]virt.Survey{"persistent": kept, "live": live} {
		if err := d.agrees(op, which, s); err != nil {
			return err
		}
	}
	if p, err := m.Power(); err != nil || !p.Up() || d.rec.Ran {
		return err
	}
	return d.update(func(r *record) { r.Ran = true })
}

// reach determines how the cluster of the disks is reached.
func (d *Driver) reach(op string, s virt.Survey) error {
	var first []string
	for i, dev := range s.Disks {
		args := argumentsFor(d.cfg.Access, s.Volumes[dev])
		if i > 0 && !slices.Equal(args, first) {
			return errs.New(errs.Unsupported, op, "the disks %s of domain %s are reached in different ways: by other monitors or as another user", strings.Join(s.Disks, " "), d.cfg.Domain).
				WithHint("virsh edit: give them the same <host> and <auth>")
		}
		first = args
	}
	if d.rec == nil {
		d.cluster.args.Store(&first)
		return nil
	}
	if slices.Equal(first, *d.cluster.args.Load()) {
		return nil
	}
	return d.update(func(r *record) { r.Reach = s.Volumes[s.Disks[0]] })
}

// adopt makes the record of a domain: its present images stay where they are.
func (d *Driver) adopt(ctx context.Context, op string, m virt.Machine) error {
	s, uuid, err := d.dom.Adoptable(op, m)
	if err != nil {
		return err
	}
	r := &record{
		Version: version, Domain: d.cfg.Domain, UUID: uuid, NVRAM: s.NVRAM, Reach: s.Volumes[s.Disks[0]], Head: map[string]string{}, Images: map[string]*image{},
		Snapshots: map[snap.SnapshotID]*snapshot{}, Switches: map[snap.RestoreID]*plan{},
	}
	for _, dev := range s.Disks {
		if err := d.takeOn(ctx, op, r, dev, s.Sources[dev]); err != nil {
			return err
		}
	}
	if err := r.write(d.cfg.StateDir); err != nil {
		return err
	}
	d.keep(r)
	return nil
}

// takeOn adds an image to the head.
func (d *Driver) takeOn(ctx context.Context, op string, r *record, dev, name string) error {
	info, err := d.cluster.info(ctx, name)
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if err := d.owns(ctx, op, name, false); err != nil {
		return err
	}
	was := r.Images[name]
	if was != nil && was.ID != info.ID {
		return errs.New(errs.Conflict, op, "disk %s of domain %s has another image %s than checkpoints have", dev, d.cfg.Domain, name).WithHint("attach it under another name: rbd mv")
	}
	if was == nil {
		r.Images[name] = &image{ID: info.ID}
	} else {
		was.Out = false
	}
	r.Head[dev] = name
	return nil
}

// owner is the text that marks the app's images in the cluster.
func (d *Driver) owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return d.cfg.App + "@" + host
}

// owns returns an error if an image belongs to another app, of this host's daemon or of another's. With take, it notes that one without
// an owner belongs to this app.
func (d *Driver) owns(ctx context.Context, op, name string, take bool) error {
	now, err := d.cluster.owner(ctx, name)
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	app, host, _ := strings.Cut(now, "@")
	switch {
	case app == d.cfg.App || now == "" && !take:
		return nil
	case now == "":
		return d.cluster.own(ctx, name, d.owner())
	}
	return errs.New(errs.Conflict, op, "the image %s belongs to the app %s of mulligand on %s", name, app, host).
		WithHint("a disk belongs to one app only; if that one is gone for good, take it over: rbd image-meta set %s %s %s", name, ownerKey, d.owner())
}

// ownsHead does the same for the domain's present images.
func (d *Driver) ownsHead(ctx context.Context, op string, take bool) error {
	return each(d.rec.Head, func(_, name string) error { return d.owns(ctx, op, name, take) })
}

// follow records disks that were attached or detached. A disk that only one of the domain's two definitions has is not captured,
// because the next start would remove it or bring it back.
func (d *Driver) follow(ctx context.Context, op string, kept, live virt.Survey) error {
	d.halfway = nil
	now := map[string]string{}
	for _, dev := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(kept.Disks, live.Disks)))) {
		switch inKept, inLive := slices.Contains(kept.Disks, dev), slices.Contains(live.Disks, dev); {
		case inKept && inLive:
			now[dev] = kept.Sources[dev]
		case inLive:
			d.halfway = append(d.halfway, fmt.Sprintf("disk %s is in the running domain and not in its persistent definition: it is neither captured nor restored (virsh attach-disk --config adds it).", dev))
		default:
			d.halfway = append(d.halfway, fmt.Sprintf("disk %s is in the persistent definition and not in the running domain: it is neither captured nor restored until the next start.", dev))
		}
	}
	if slices.Equal(slices.Sorted(maps.Keys(now)), d.rec.devices()) || d.rec.switching() {
		return nil
	}
	if len(now) == 0 {
		return errs.New(errs.Conflict, op, "domain %s has no disk any more that is in both its live and its persistent definition", d.cfg.Domain).
			WithHint("virsh attach-disk --config; or register the app without the domain")
	}
	next, err := d.rec.clone()
	if err != nil {
		return err
	}
	for dev, name := range d.rec.Head {
		if now[dev] == "" {
			next.Images[name].Out = true
			delete(next.Head, dev)
			next.News = append(next.News, fmt.Sprintf("disk %s was detached from domain %s, or is excluded now: its image %s stays as it is, and older checkpoints keep their copies.", dev, d.cfg.Domain, name))
		}
	}
	for dev, name := range now {
		if next.Head[dev] == "" {
			if err := d.takeOn(ctx, op, next, dev, name); err != nil {
				return err
			}
			next.News = append(next.News, fmt.Sprintf("disk %s was attached to domain %s: it is captured from now on, and checkpoints made before leave it alone.", dev, d.cfg.Domain))
		}
	}
	return d.update(func(r *record) { *r = *next })
}

// agrees checks that a definition has the images of the head.
func (d *Driver) agrees(op, which string, s virt.Survey) error {
	for dev, should := range d.rec.Head {
		switch now := s.Sources[dev]; now {
		case should:
		case "":
			return errs.New(errs.Conflict, op, "domain %s was redefined: its %s definition has disks %s, and %s are protected",
				d.cfg.Domain, which, strings.Join(s.Disks, " "), strings.Join(d.rec.devices(), " ")).
				WithHint("a rollback of it is under way: attach the disk again, and detach it after the rollback")
		default:
			return errs.New(errs.Conflict, op, "domain %s was redefined: disk %s is %s in its %s definition, and should be %s", d.cfg.Domain, dev, now, which, should).
				WithHint("nothing is lost: virsh edit it back; or app remove and app add, which starts a new history")
		}
	}
	return nil
}

// each calls f for all entries of a map at the same time, and returns the first error.
func each[V any](m map[string]V, f func(dev string, v V) error) error {
	failed := make(chan error, len(m))
	for dev, v := range m {
		go func() { failed <- f(dev, v) }()
	}
	var all []error
	for range m {
		all = append(all, <-failed)
	}
	if err := errors.Join(all...); err == nil {
		return nil
	}
	i := slices.IndexFunc(all, func(err error) bool { return err != nil })
	return all[i]
}

// name returns a name for the cluster that was never used.
func (d *Driver) name(r *record) string {
	r.Seq++
	return fmt.Sprintf("mulligan-%s-%06d-%s", d.cfg.App, r.Seq, imagefile.Random())
}

// ours reports whether the driver gives such names.
func (d *Driver) ours(name string) bool {
	rest, ok := strings.CutPrefix(name, "mulligan-"+d.cfg.App+"-")
	return ok && ownSuffix.MatchString(rest)
}

// ownSuffix matches what follows the app's id in a name of the driver's.
var ownSuffix = regexp.MustCompile(`^[0-9]{6,}-[0-9a-f]+(-[a-z]+)?$`)

// copyNVRAM copies the domain's NVRAM, and returns nil if the domain has none yet. The copy is in a folder of root's and needs no flag that
// protects it from others.
func (d *Driver) copyNVRAM(path, name string) (*layertree.File, error) {
	if path == "" {
		return nil, nil
	}
	if err := d.dom.TrustedNVRAM("", path); err != nil {
		return nil, err
	}
	f, err := layertree.CopyNVRAM(path, filepath.Join(d.cfg.StateDir, name+".nvram"))
	if err == nil && f != nil {
		err = imagefile.SetImmutable(f.Path, false)
	}
	return f, err
}

// sameNVRAM compares the domain's NVRAM with the copy of a snapshot.
func (d *Driver) sameNVRAM(path string, s snapshot) (bool, error) {
	if s.NVRAM == nil {
		return true, nil // it had none, and a restore leaves the present one alone
	}
	hash, err := imagefile.HashOrNone(path)
	return err == nil && hash == s.NVRAM.Hash, err
}
