//go:build cgo && libvirt_dlopen

package disk

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"libvirt.org/go/libvirt"

	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/virt"
	"mulligan/testkit"
)

// host is one libvirtd for all tests of the package: each has a domain of its own. Tests that kill
// it are not parallel.
var host = sync.OnceValues(func() (*disktest.Host, error) { return disktest.Start(disktest.Options{}) })

var hostStarted atomic.Bool

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
	os.Exit(code)
}

// theHost gives the shared libvirtd, or skips the test.
func theHost(t testing.TB) *disktest.Host {
	t.Helper()
	disktest.Need(t)
	h, err := host()
	if err != nil {
		t.Fatal(err)
	}
	hostStarted.Store(true)
	return h
}

// vm is a domain under test, with a connection beside the driver's.
type vm struct {
	*disktest.Guest
	host *disktest.Host
	conn *libvirt.Connect
}

// newVM defines a domain of its own for the test.
func newVM(t testing.TB, opt disktest.GuestOptions) *vm {
	t.Helper()
	return newVMOn(t, theHost(t), opt)
}

var vms atomic.Int64

func newVMOn(t testing.TB, h *disktest.Host, opt disktest.GuestOptions) *vm {
	t.Helper()
	v := &vm{Guest: h.NewGuest(t, fmt.Sprintf("vm%d", vms.Add(1)), opt), host: h}
	v.connect(t)
	v.define(t, v.XML)
	t.Cleanup(func() {
		v.connect(t)
		v.HangUp()
		d := v.lookup(t)
		_ = d.Destroy() // it may be off
		if err := d.UndefineFlags(libvirt.DOMAIN_UNDEFINE_KEEP_NVRAM | libvirt.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA | libvirt.DOMAIN_UNDEFINE_MANAGED_SAVE); err != nil {
			t.Error(err)
		}
		_, _ = v.conn.Close()
	})
	return v
}

func (v *vm) connect(t testing.TB) {
	t.Helper()
	if v.conn != nil {
		if _, err := v.conn.GetHostname(); err == nil { // IsAlive believes anything
			return
		}
		_, _ = v.conn.Close()
	}
	v.conn = nil
	for tries := 0; v.conn == nil; tries++ { // it takes connections before it is ready for them
		if err := v.host.WaitUp(); err != nil {
			t.Fatal(err)
		}
		conn, err := libvirt.NewConnect(v.host.URI)
		if err != nil && tries == 100 {
			t.Fatal(err)
		}
		v.conn = conn
	}
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
	v.connect(t)
	d, err := v.conn.LookupDomainByName(v.Name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (v *vm) xml(t testing.TB, flags libvirt.DomainXMLFlags) string {
	t.Helper()
	text, err := v.lookup(t).GetXMLDesc(flags)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// sources are the images in the definition.
func (v *vm) sources(t testing.TB, flags libvirt.DomainXMLFlags) map[string]string {
	t.Helper()
	s, err := virt.Inspect("test", v.xml(t, flags))
	if err != nil {
		t.Fatal(err)
	}
	return s.Sources
}

func (v *vm) up(t testing.TB) bool {
	t.Helper()
	up, err := v.lookup(t).IsActive()
	if err != nil {
		t.Fatal(err)
	}
	return up
}

// boot starts the domain from outside and waits for the guest.
func (v *vm) boot(t testing.TB) {
	t.Helper()
	v.connect(t)
	v.Boot(t)
}

// driver makes a driver for the domain over the state folder.
func (v *vm) driver(t testing.TB, state string, change func(*Config)) *Driver {
	t.Helper()
	cfg := Config{App: "app-1", Domain: v.Name, URI: v.host.URI, StateDir: state, Shutdown: guest.Destroy,
		QuiesceTimeout: testkit.Patience, // an emulated guest may be slow
		Log:            slog.New(slog.NewTextHandler(t.Output(), nil))}
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
