// Package disk is the driver for the disks of a libvirt domain.
//
// The daemon owns a tree of immutable qcow2 overlays. A snapshot freezes the images that the domain writes to and creates
// overlays on them, for all disks at the same instant, whether the domain runs or not. A restore creates overlays on the layer
// that the snapshot froze. Nothing is copied. Layers that no snapshot names are merged in the background. DESIGN.md has the
// invariants, the files and the crash windows.
package disk

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/virt"
)

const driverName = "libvirt"

// Config names the domain of a driver.
type Config struct {
	App      string // the app's id: names folders; no slashes
	Domain   string // its name
	URI      string // of libvirt: qemu:///system if ""
	StateDir string // a folder of the daemon for this driver's records alone
	// PoolDir is the folder of the overlays; "": a folder beside each disk.
	PoolDir         string
	Shutdown        guest.Shutdown // guest.Clean if ""
	ShutdownTimeout time.Duration  // 60 s if 0
	// QuiesceTimeout bounds the time that the guest agent may take to freeze the guest's filesystems, and to thaw them; 0 means 5
	// s.
	QuiesceTimeout time.Duration
	// Depth is the length of a backing chain above which images are merged; 0 means 32.
	Depth     int
	Failpoint failpoint.Hook // for tests: called before each step that has a lasting effect
	Log       *slog.Logger
}

// Driver captures and restores the disks of one domain.
type Driver struct {
	mu        sync.Mutex // held during each method, except during the long work of Maintain
	*record              // shared with all the parts below
	dom       *domain
	images    *images
	integrity *integrity
	follower  *follower
	reopener  *reopener
	recovery  *recovery
	thawer    *thawer
	merger    *merger
	flattener *flattener

	maxLive int // see the constant

	maintain sync.Mutex // held during Maintain
	maps     imagefile.MapCache

	life context.Context // ends with Close
	end  context.CancelFunc
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

// New returns a driver. It does not look at the domain.
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
	cfg.Shutdown = cmp.Or(cfg.Shutdown, guest.Clean)
	if err := cfg.Shutdown.Check(op); err != nil {
		return nil, err
	}
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, time.Minute)
	cfg.QuiesceTimeout = cmp.Or(cfg.QuiesceTimeout, 5*time.Second)
	cfg.URI = cmp.Or(cfg.URI, "qemu:///system")
	cfg.Depth = cmp.Or(cfg.Depth, 32)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	rec := &record{cfg: cfg}
	dom := &domain{record: rec, Domain: &guest.Domain{Name: cfg.Domain, URI: cfg.URI}}
	d := &Driver{
		record: rec, dom: dom, images: &images{rec, dom}, integrity: &integrity{rec}, maxLive: maxLive,
		follower: &follower{record: rec, dom: dom}, reopener: &reopener{rec, dom}, flattener: &flattener{rec, dom},
	}
	d.recovery, d.thawer, d.merger = &recovery{d}, &thawer{d: d}, &merger{d: d}
	d.life, d.end = context.WithCancel(context.Background())
	return d, nil
}

func validName(s string) bool {
	return s != "" && s[0] != '.' && !strings.ContainsAny(s, "/\x00")
}

// Close ends the driver's work in the background and its connection to libvirt.
func (d *Driver) Close() error {
	d.end()
	d.thawer.work.Wait()
	d.maintain.Lock() // afterwards another driver may use the records
	defer d.maintain.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dom.Close()
}

// CapturesLive returns true: a capture of a running domain switches all its disks at the same instant, with the guest's
// filesystems frozen if its agent answers.
func (d *Driver) CapturesLive() bool { return true }

// begin locks d.mu, reads the tree and checks the context. If there is no error, the caller must unlock d.mu.
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

// open does what openAnyhow does, and returns an error if the domain's present images cannot be read.
func (d *Driver) open(ctx context.Context, op string) (virt.Machine, error) {
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		return nil, err
	}
	if err := d.follower.followChains(op); err != nil {
		m.Free()
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return m, nil
}

// openAnyhow returns libvirt's handle of the domain, after it has recovered what an earlier process left unfinished and checked
// that the domain agrees with the tree. It adopts a domain that has no tree yet. It does not check whether the present images
// can be read. The caller holds the lock, and must free the machine.
func (d *Driver) openAnyhow(ctx context.Context, op string) (virt.Machine, error) {
	m, err := d.dom.machine(op)
	if err != nil {
		return nil, err
	}
	if d.tree != nil {
		err = d.recovery.recover(ctx, op, m)
	}
	if err == nil && d.tree == nil {
		err = d.follower.adopt(op, m)
	}
	if err == nil {
		err = d.follower.agree(op, m)
	}
	if err == nil {
		err = d.follower.noteRun(m)
	}
	if err != nil {
		m.Free()
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return m, nil
}
