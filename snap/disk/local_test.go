//go:build cgo && libvirt_dlopen

package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/virt"
	"mulligan/testkit"
)

func TestURIsOfOtherHosts(t *testing.T) {
	for _, uri := range []string{
		"qemu+tcp://127.0.0.1/system", "qemu+ssh://root@db2/system", "qemu+tls://db2/system", "qemu://db2/system", "qemu+unix://db2/system",
		"qemu+libssh2://db2/system", "qemu+ext:///system?command=/bin/x", "qemu+ssh:///system", "://",
	} {
		if err := virt.LocalURI(uri); err == nil || errs.HintOf(err) == "" {
			t.Errorf("%s: %v", uri, err)
		}
	}
	for _, uri := range []string{"qemu:///system", "qemu:///session", "qemu+unix:///system", "qemu:///system?socket=/run/x", "qemu+unix:///system?socket=/run/x", "test:///default"} {
		if err := virt.LocalURI(uri); err != nil {
			t.Errorf("%s: %v", uri, err)
		}
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if err := virt.SameHost("u", virt.FirstLabel(name)+".example.org"); err != nil {
		t.Error(err)
	}
	fails(t, virt.SameHost("u", name+"2"), errs.Unsupported, name+"2")
}

// A libvirt on another host is refused however it is reached: by TCP, by a socket that
// is forwarded from there, and by way of a libvirt of this host. A namesake of the domain
// on this host, with the same disks, is not captured in its place.
func testLibvirtOfAnotherHost(t *testing.T) {
	here := newVM(t, disktest.GuestOptions{SizeMiB: 4, KeepBare: true})
	there, err := disktest.Start(disktest.Options{Hostname: "elsewhere", Port: testkit.Port(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := there.Close(); err != nil {
			t.Error(err)
		}
	})
	namesake := &vm{Guest: here.Guest, host: there}
	namesake.connect(t)
	namesake.define(t, here.XML)
	tcp := fmt.Sprintf("qemu+tcp://127.0.0.1:%d/system", there.Port)
	local := here.host.URI
	for _, uri := range []string{
		tcp, there.URI, strings.Replace(there.URI, "qemu:", "qemu+unix:", 1), local + "&name=" + tcp,
	} {
		d := here.driver(t, t.TempDir(), func(c *Config) { c.URI = uri })
		_, err := d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
		if err == nil {
			t.Errorf("%s: the namesake here was captured", uri)
			continue
		}
		t.Logf("%s: %v", uri, err)
		if kind := errs.KindOf(err); kind != errs.Unsupported && !strings.Contains(uri, "name=") || errs.HintOf(err) == "" {
			t.Errorf("%s: %s, %v", uri, kind, err)
		}
		if entries, err := filepath.Glob(filepath.Join(filepath.Dir(here.Disks[0]), "mulligan", "*", "*")); err != nil || len(entries) > 0 {
			t.Errorf("%s: it left %v, %v", uri, entries, err)
		}
	}
	d := here.driver(t, t.TempDir(), func(c *Config) { c.URI = strings.Replace(local, "qemu:", "qemu+unix:", 1) })
	capture(t, d)
}
