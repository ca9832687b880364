//go:build cgo && libvirt_dlopen

package rbd

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"libvirt.org/go/libvirt"

	"mulligan/snap/disk/cephtest"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/guest"
	"mulligan/testkit"
)

// host is one libvirtd for all tests of the package, and the Ceph of the process.
var host = sync.OnceValues(func() (*disktest.Host, error) { return disktest.Start(disktest.Options{}) })

var (
	hostStarted atomic.Bool
	secret      string // of the cluster's user, for libvirt
	secretOnce  sync.Once
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child() // a daemon that is going to be killed
	}
	code := m.Run()
	if hostStarted.Load() {
		if h, err := host(); err == nil {
			if err := h.Close(); err != nil {
				fmt.Fprintln(os.Stderr, "close the host:", err)
				code = max(code, 1)
			}
		}
	}
	if err := cephtest.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "close Ceph:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// vm is a domain with disks on Ceph, with a connection beside the driver's.
type vm struct {
	*disktest.Guest
	host   *disktest.Host
	ceph   *cephtest.Cluster
	conn   *libvirt.Connect
	images []string // that it was first defined with
}

var vms atomic.Int64

// newVM defines a domain with so many disks, each of sizeMiB, with a filesystem or bare.
func newVM(t testing.TB, disks, sizeMiB int, mkfs bool, opt disktest.GuestOptions) *vm {
	t.Helper()
	disktest.Need(t)
	ceph := cephtest.Running(t)
	h, err := host()
	if err != nil {
		t.Fatal(err)
	}
	hostStarted.Store(true)
	secretOnce.Do(func() { secret = ceph.Secret(t, h.URI) })
	v := &vm{host: h, ceph: ceph}
	for i := range disks {
		image := ceph.Image(t, sizeMiB, mkfs)
		v.images = append(v.images, image)
		opt.Given += ceph.Disk(image, "vd"+string(rune('a'+i)), secret)
	}
	v.Guest = h.NewGuest(t, fmt.Sprintf("rbd%d", vms.Add(1)), opt)
	if v.conn, err = libvirt.NewConnect(h.URI); err != nil {
		t.Fatal(err)
	}
	v.define(t, v.XML)
	t.Cleanup(func() {
		v.HangUp()
		d := v.lookup(t)
		_ = d.Destroy() // it may be off
		if err := d.UndefineFlags(libvirt.DOMAIN_UNDEFINE_KEEP_NVRAM); err != nil {
			t.Error(err)
		}
		_, _ = v.conn.Close()
	})
	return v
}

func (v *vm) define(t testing.TB, xml string) {
	t.Helper()
	d, err := v.conn.DomainDefineXML(xml)
	if err != nil {
		t.Fatal(err)
	}
	_ = d.Free()
}

func (v *vm) lookup(t testing.TB) *libvirt.Domain {
	t.Helper()
	d, err := v.conn.LookupDomainByName(v.Name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// boot starts the domain from outside and waits for the guest.
func (v *vm) boot(t testing.TB) {
	t.Helper()
	if err := v.lookup(t).Create(); err != nil {
		t.Fatal(err)
	}
	v.WaitReady(t)
}

// config returns the configuration of a driver for the domain over the state folder.
func (v *vm) config(t testing.TB, state string) Config {
	return Config{
		App: "app-" + v.Name, Domain: v.Name, URI: v.host.URI, StateDir: state, Shutdown: guest.Destroy, Access: Access{Conf: v.ceph.Conf},
		QuiesceTimeout: testkit.Patience, // an emulated guest may be slow
		Log:            slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func (v *vm) driver(t testing.TB, state string, change func(*Config)) *Driver {
	t.Helper()
	cfg := v.config(t, state)
	if change != nil {
		change(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// head returns the images in the persistent definition, by target device.
func (v *vm) head(t testing.TB) map[string]string {
	t.Helper()
	s, _, err := survey(v, t)
	if err != nil {
		t.Fatal(err)
	}
	return s.Sources
}

// sum returns the hash of all that an image, or a snapshot of one, reads as.
func (v *vm) sum(t testing.TB, spec string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", `rbd export --no-progress "$1" - | sha256sum`, "sh", spec)
	cmd.Env = append(os.Environ(), "CEPH_CONF="+v.ceph.Conf)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("export %s: %v", spec, err)
	}
	return strings.Fields(string(out))[0]
}

// litter checks that the cluster has nothing of the app that no checkpoint needs.
func (v *vm) litter(t testing.TB, d *Driver) {
	t.Helper()
	if err := d.Maintain(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d.rec == nil {
		return // it has made nothing
	}
	needed := map[string]bool{}
	for _, s := range d.rec.live() {
		for _, p := range s.Disks {
			needed[p.at()] = true
		}
	}
	for _, s := range d.rec.Doomed { // a request for it may be under way
		needed[s.at()] = true
	}
	for _, image := range strings.Fields(v.ceph.RBD(t, "ls", "rbd")) {
		name := "rbd/" + image
		i := d.rec.Images[name]
		if i == nil {
			if d.ours(image) {
				t.Errorf("%s is in the cluster and nothing needs it", name)
			}
			continue
		}
		list, err := d.cluster.snapshots(context.Background(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if s.Name != i.Base && !needed[name+"@"+s.Name] {
				t.Errorf("%s@%s is in the cluster and nothing needs it", name, s.Name)
			}
		}
	}
}
