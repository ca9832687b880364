// Package disk is the driver for the disks of a libvirt domain.
//
// The daemon owns a tree of immutable qcow2 overlays. A snapshot freezes the
// images that the domain writes to and puts fresh overlays on top, all disks at
// once, whether the domain runs or not; a restore puts fresh overlays on the
// layer that the snapshot froze. Nothing is copied. What no snapshot names any
// more is merged away in the background. DESIGN.md has the invariants, the
// files and the crash windows.
package disk

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

const (
	driverName = "libvirt"
	version    = 1 // of tree.json
)

// Shutdown is how a domain is switched off.
type Shutdown string

// The ways.
const (
	Clean   Shutdown = "clean"   // the guest is asked; after ShutdownTimeout it is switched off
	Destroy Shutdown = "destroy" // it is switched off
)

// Config says which domain a driver is bound to.
type Config struct {
	App      string // the app's id: names folders; no slashes
	Domain   string // its name
	URI      string // of libvirt: qemu:///system if ""
	StateDir string // the daemon's own, for this driver alone: its records
	// PoolDir is where overlays lie; "": in a folder beside each disk.
	PoolDir         string
	Shutdown        Shutdown      // Clean if ""
	ShutdownTimeout time.Duration // 60 s if 0
	// QuiesceTimeout is how long the guest agent may take to freeze the guest's
	// filesystems, and to thaw them: 5 s if 0.
	QuiesceTimeout time.Duration
	// Depth is how many images may lie upon each other before they are merged: 32 if 0.
	Depth     int
	Failpoint failpoint.Hook // for tests: called ahead of each step that lasts
	Log       *slog.Logger
}

// Driver captures and restores the disks of one domain.
type Driver struct {
	cfg  Config
	dial func(uri string) (virt.Hypervisor, error)

	mu    sync.Mutex      // held during each method, but for the long work of Maintain
	tree  *layertree.Tree // nil: not read yet, or there is none
	conn  virt.Hypervisor
	owner *owner // QEMU's user, once it is known

	look struct { // what State looks through: it waits for nobody's work
		sync.Mutex
		conn virt.Hypervisor
	}

	claim   atomic.Pointer[Claim]
	halfway []string // sentences about disks that only one of the domain's definitions has

	maxLive int // see the constant

	maintain sync.Mutex // held during Maintain
	maps     imagefile.MapCache

	life    context.Context // ends with Close
	end     context.CancelFunc
	thawer  sync.WaitGroup
	thawing bool // keepThawing runs
}

var (
	_ snap.Driver       = (*Driver)(nil)
	_ snap.LiveCapturer = (*Driver)(nil)
	_ snap.Differ       = (*Driver)(nil)
	_ snap.Maintainer   = (*Driver)(nil)

	_ snap.MemoryCapturer = (*Driver)(nil)
	_ snap.Salvager       = (*Driver)(nil)
	_ snap.GapFinder      = (*Driver)(nil)
)

// New makes the driver; it does not look at the domain.
func New(cfg Config) (*Driver, error) {
	const op = "open disk driver"
	if !validName(cfg.App) {
		return nil, errs.New(errs.Invalid, op, "%q is not a name", cfg.App)
	}
	if cfg.Domain == "" || strings.ContainsAny(cfg.Domain, "/\x00\n") {
		return nil, errs.New(errs.Invalid, op, "%q is not the name of a domain", cfg.Domain)
	}
	if !filepath.IsAbs(cfg.StateDir) || cfg.PoolDir != "" && !filepath.IsAbs(cfg.PoolDir) {
		return nil, errs.New(errs.Invalid, op, "an absolute state folder is needed, and an absolute pool folder if any")
	}
	switch cfg.Shutdown {
	case "":
		cfg.Shutdown = Clean
	case Clean, Destroy:
	default:
		return nil, errs.New(errs.Invalid, op, "unknown way of shutting down %q", cfg.Shutdown).WithHint("use clean or destroy")
	}
	orDefault := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	orDefault(&cfg.ShutdownTimeout, time.Minute)
	orDefault(&cfg.QuiesceTimeout, 5*time.Second)
	if cfg.URI == "" {
		cfg.URI = "qemu:///system"
	}
	if cfg.Depth == 0 {
		cfg.Depth = 32
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	d := &Driver{cfg: cfg, dial: virt.Dial, maxLive: maxLive}
	d.life, d.end = context.WithCancel(context.Background())
	return d, nil
}

func validName(s string) bool {
	return s != "" && s[0] != '.' && !strings.ContainsAny(s, "/\x00")
}

// Close ends what the driver does in the background and lets go of libvirt.
func (d *Driver) Close() error {
	d.end()
	d.thawer.Wait()
	d.maintain.Lock() // another driver may take over the records
	defer d.maintain.Unlock()
	d.mu.Lock()
	conn := d.conn
	d.conn = nil
	d.mu.Unlock()
	d.look.Lock()
	eye := d.look.conn
	d.look.conn = nil
	d.look.Unlock()
	var all []error
	for _, c := range []virt.Hypervisor{conn, eye} {
		if c != nil {
			all = append(all, c.Close())
		}
	}
	return errors.Join(all...)
}

// CapturesLive is true: a capture of a running domain switches all its disks at
// one instant, with the guest's filesystems frozen where its agent answers.
func (d *Driver) CapturesLive() bool { return true }

// begin takes the lock, reads the tree and checks the context; its caller
// unlocks where there is no error.
func (d *Driver) begin(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, op, err)
	}
	d.mu.Lock()
	if err := d.load(op); err != nil {
		d.mu.Unlock()
		return err
	}
	return nil
}

// machine connects to libvirt and finds the domain. The caller frees it.
func (d *Driver) machine(op string) (virt.Machine, error) {
	m, err := d.lookup()
	if errs.KindOf(err) == errs.Unavailable && d.conn != nil {
		// libvirtd was restarted: a dead connection shows only when it is used.
		_ = d.conn.Close()
		d.conn = nil
		m, err = d.lookup()
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if err := d.sameDomain(op, m); err != nil {
		m.Free()
		return nil, err
	}
	return m, nil
}

func (d *Driver) lookup() (virt.Machine, error) {
	if d.conn == nil {
		conn, err := d.dial(d.cfg.URI)
		if err != nil {
			return nil, err
		}
		d.conn, d.owner = conn, nil
	}
	uuid := ""
	if d.tree != nil {
		uuid = d.tree.UUID
	}
	m, err := d.conn.Lookup(d.cfg.Domain, uuid)
	if uuid == "" || errs.KindOf(err) != errs.NotFound {
		return m, err
	}
	other, e := d.conn.Lookup(d.cfg.Domain, "")
	if e != nil {
		return nil, err
	}
	defer other.Free()
	now, e := other.UUID()
	if e != nil {
		return nil, e
	}
	return nil, errs.New(errs.Conflict, "", "domain %s was defined anew: its UUID is %s, and was %s", d.cfg.Domain, now, uuid).
		WithHint("nothing is lost: virsh undefine it, and define it with <uuid>%s</uuid>; or app remove --purge and app add, which starts a new history", uuid)
}

// sameDomain refuses a domain that is called differently now.
func (d *Driver) sameDomain(op string, m virt.Machine) error {
	name, err := m.Name()
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if name != d.cfg.Domain {
		return errs.New(errs.Conflict, op, "domain %s is called %s now", d.cfg.Domain, name).
			WithHint("mulligan app set domain=%s, or virsh domrename it back", name)
	}
	return nil
}

// open is openAnyhow of a domain whose present images can be read.
func (d *Driver) open(ctx context.Context, op string) (virt.Machine, error) {
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		return nil, err
	}
	if err := d.followChains(op); err != nil {
		m.Free()
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return m, nil
}

// openAnyhow gives the machine of a domain that the tree agrees with, having
// recovered what an earlier process left; a domain seen for the first time is
// adopted. Whether its present images can be read is not looked at. The caller holds the
// lock, and frees the machine.
func (d *Driver) openAnyhow(ctx context.Context, op string) (virt.Machine, error) {
	m, err := d.machine(op)
	if err != nil {
		return nil, err
	}
	if d.tree != nil {
		err = d.recover(ctx, op, m)
	}
	if err == nil && d.tree == nil {
		err = d.adopt(op, m)
	}
	if err == nil {
		err = d.agree(op, m)
	}
	if err == nil {
		err = d.noteRun(m)
	}
	if err != nil {
		m.Free()
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return m, nil
}

// noteRun writes down that the domain runs, if it does: after a restart of libvirtd nobody
// else knows.
func (d *Driver) noteRun(m virt.Machine) error {
	p, err := m.Power()
	if err != nil || !p.Up() || d.tree.Ran || d.tree.Intent != nil {
		return err
	}
	if len(d.tree.Layers) == 1 { // it was adopted just now, and the tree is not written down yet
		d.tree.Ran = true
		return nil
	}
	return d.update(func(t *layertree.Tree) { t.Ran = true })
}

// snapshot finds a snapshot.
func (d *Driver) snapshot(op string, id snap.SnapshotID) (*layertree.Snapshot, error) {
	if d.tree != nil {
		if s := d.tree.Snapshots[id]; s != nil {
			return s, nil
		}
	}
	return nil, errs.New(errs.NotFound, op, "no snapshot %s of domain %s", id, d.cfg.Domain).
		WithHint("list the checkpoints to see which there are")
}
