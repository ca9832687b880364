// Package disktest boots real, tiny guests under a private libvirtd for tests.
// It needs root, libvirtd with its QEMU driver, QEMU, busybox and a kernel with
// modules (see PACKAGES in the Makefile), and no image. Guests run under
// emulation: no /dev/kvm is needed, and one boots in a few seconds.
//
// The libvirtd lives in a mount namespace of its own: the host's libvirt, if any,
// is neither seen nor touched. It and its guests end with the test's process,
// however that ends.
package disktest

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"mulligan/testkit"

	"golang.org/x/sys/unix"
)

//go:embed host.sh
var hostScript string

//go:embed guest.sh
var guestScript string

// Host is a private libvirtd.
type Host struct {
	URI  string
	Dir  string // a folder for disks and sockets; it goes with the host
	Port int    // of the loopback interface; 0: none

	cmd    *exec.Cmd
	stop   io.Closer // its end ends everything
	kernel string    // path of the image

	initrd func() (string, error) // builds it once
}

// Options are what a host can differ in.
type Options struct {
	Owners   bool   // libvirt changes and remembers the owners of images, as on a stock host
	Hostname string // what libvirtd takes for the host's name, where that is not this host's
	Port     int    // of the loopback interface, on which libvirtd also listens; 0: none
}

// Missing says why no host can be started here; "" if one can.
func Missing() string {
	if os.Geteuid() != 0 {
		return "it needs root"
	}
	for _, tool := range []string{"libvirtd", "qemu-system-x86_64", "qemu-img", "busybox", "unshare", "mke2fs", "cpio"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is missing"
		}
	}
	if _, _, err := findKernel(); err != nil {
		return err.Error()
	}
	return ""
}

// Need ends the test as testkit.Lack does when no host can be started here.
func Need(t testing.TB) {
	t.Helper()
	testkit.Need(t, "root", "libvirt")
	if why := Missing(); why != "" {
		testkit.Lack(t, "no libvirt for this test: ", why)
	}
}

// Running is Need, and a host that ends with the test.
func Running(t testing.TB) *Host {
	t.Helper()
	Need(t)
	h, err := Start(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// findKernel finds the newest kernel for guests, or else the newest one, that has its modules beside it. One for guests has the drivers of
// disks and filesystems built in.
func findKernel() (version, image string, err error) {
	for _, pattern := range []string{"/boot/vmlinuz-*cloud*", "/boot/vmlinuz-*"} {
		images, _ := filepath.Glob(pattern)
		for _, image := range images {
			v := strings.TrimPrefix(filepath.Base(image), "vmlinuz-")
			if _, err := os.Stat("/lib/modules/" + v + "/kernel"); err == nil && v > version {
				version = v
			}
		}
		if version != "" {
			break
		}
	}
	if version == "" {
		return "", "", errors.New("no kernel with modules in /boot (package linux-image-cloud-amd64)")
	}
	return version, "/boot/vmlinuz-" + version, nil
}

// Start starts a host. The caller closes it.
func Start(opt Options) (*Host, error) {
	version, kernel, err := findKernel()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "mdt-") // short: sockets live below it
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	h := &Host{Dir: dir, URI: "qemu:///system?socket=" + dir + "/run/libvirt-sock", Port: opt.Port, kernel: kernel}
	h.initrd = sync.OnceValues(func() (string, error) {
		out := filepath.Join(dir, "initrd")
		text, err := exec.Command("sh", "-c", guestScript, "guest.sh", version, out).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("build the guest: %w: %s", err, text)
		}
		return out, nil
	})
	if err := errors.Join(h.configure(opt), h.knowQEMU()); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := h.launch(opt); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Host) configure(opt Options) error {
	etc := filepath.Join(h.Dir, "etc", "qemu")
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return err
	}
	dynamic := 0
	if opt.Owners {
		dynamic = 1
	}
	conf := fmt.Sprintf("dynamic_ownership = %d\nremember_owner = %[1]d\n", dynamic) + `user = "root"
group = "root"
security_driver = "none"
security_default_confined = 0
cgroup_controllers = [ ]
namespaces = [ ]
stdio_handler = "file"
max_core = 0
`
	daemon := "listen_tls = 0\nauth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\nunix_sock_rw_perms = \"0700\"\n"
	if h.Port != 0 {
		daemon += fmt.Sprintf("listen_tcp = 1\nauth_tcp = \"none\"\nlisten_addr = \"127.0.0.1\"\ntcp_port = \"%d\"\n", h.Port)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(h.Dir, "etc", "qemu.conf"), []byte(conf), 0o644),
		os.WriteFile(filepath.Join(h.Dir, "etc", "libvirtd.conf"), []byte(daemon), 0o644),
	)
}

// probes is the folder, below the host's, in which libvirtd keeps what it found out of QEMU.
func (h *Host) probes() string { return filepath.Join(h.Dir, "cache", "qemu", "capabilities") }

// kept is the folder in which that is kept for the next host; "" if there can be none.
func kept() string {
	root, err := testkit.CacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(root, "qemu-probes")
}

// knowQEMU gives libvirtd what an earlier one found out of QEMU, so that it need not start each
// QEMU to ask. libvirtd itself finds whether that still holds.
func (h *Host) knowQEMU() error {
	from := kept()
	if from == "" || !exists(from) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(h.probes()), 0o755); err != nil {
		return err
	}
	return os.CopyFS(h.probes(), os.DirFS(from))
}

// keepProbes keeps what libvirtd found out of QEMU, if nothing is kept. Made beside its place and
// renamed, the folder is whole or not there. That it is not kept costs time alone.
func (h *Host) keepProbes() {
	to := kept()
	if to == "" || exists(to) || os.MkdirAll(filepath.Dir(to), 0o755) != nil {
		return
	}
	temp, err := os.MkdirTemp(filepath.Dir(to), "probes-")
	if err != nil {
		return
	}
	defer os.RemoveAll(temp)
	if found, err := os.ReadDir(h.probes()); err != nil || len(found) == 0 {
		return
	}
	if os.CopyFS(temp, os.DirFS(h.probes())) == nil {
		_ = os.Rename(temp, to) // another may have been faster
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (h *Host) launch(opt Options) error {
	listen := ""
	if h.Port != 0 {
		listen = "--listen"
	}
	h.cmd = exec.Command("unshare", "--mount", "--uts", "sh", "-c", hostScript, "host.sh", h.Dir, opt.Hostname, listen)
	in, err := h.cmd.StdinPipe()
	if err != nil {
		return err
	}
	h.stop = in
	out, err := os.Create(filepath.Join(h.Dir, "host.log"))
	if err != nil {
		return err
	}
	defer out.Close()
	h.cmd.Stdout, h.cmd.Stderr = out, out
	if err := h.cmd.Start(); err != nil {
		return err
	}
	return h.WaitUp()
}

// WaitUp waits until libvirtd takes connections.
func (h *Host) WaitUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	return poll(ctx, func() error {
		c, err := net.Dial("unix", filepath.Join(h.Dir, "run", "libvirt-sock"))
		if err != nil {
			log, _ := os.ReadFile(filepath.Join(h.Dir, "libvirtd.log"))
			return fmt.Errorf("libvirtd: %w: %s", err, bytes.TrimSpace(log))
		}
		return c.Close()
	})
}

// poll calls f until it succeeds or ctx ends.
func poll(ctx context.Context, f func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// Hold keeps libvirtd from coming up again once it is killed, until it is let go.
func (h *Host) Hold(down bool) error {
	path := filepath.Join(h.Dir, "hold")
	if !down {
		return os.Remove(path)
	}
	return os.WriteFile(path, nil, 0o600)
}

// KillLibvirtd kills libvirtd with SIGKILL; it comes up again at once (see WaitUp).
func (h *Host) KillLibvirtd() error { return h.Signal(unix.SIGKILL) }

// Signal sends libvirtd a signal.
func (h *Host) Signal(sig unix.Signal) error {
	pid, err := h.pid("libvirtd.pid")
	if err != nil {
		return err
	}
	return unix.Kill(pid, sig)
}

// pid reads the pid file at path, below the host's folder, of a process that
// names that folder in its command line.
func (h *Host) pid(path ...string) (int, error) {
	text, err := os.ReadFile(filepath.Join(append([]string{h.Dir}, path...)...))
	if err != nil {
		return 0, err
	}
	pid := strings.TrimSpace(string(text))
	line, err := os.ReadFile("/proc/" + pid + "/cmdline")
	if err != nil {
		return 0, err
	}
	if !bytes.Contains(line, []byte(h.Dir)) {
		return 0, fmt.Errorf("%s is not ours", pid)
	}
	return strconv.Atoi(pid)
}

// Close ends every guest and libvirtd, and removes the folder.
func (h *Host) Close() error {
	if h.cmd != nil && h.cmd.Process != nil {
		_ = h.stop.Close()
		_ = h.cmd.Wait() // killed: that is no news
		h.keepProbes()
	}
	_ = exec.Command("chattr", "-R", "-i", h.Dir).Run() // layers are immutable
	return os.RemoveAll(h.Dir)
}
