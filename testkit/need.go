// Package testkit has what the tests of all packages share: the programs that a test needs on its host, what is made once for all
// tests, and the seed of random draws.
package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// NoSkip reports whether a missing program fails a test instead of skipping it. make test sets MULLIGAN_TEST_NOSKIP=1 for root.
func NoSkip() bool { return os.Getenv("MULLIGAN_TEST_NOSKIP") == "1" }

// need is a requirement of tests.
type need struct {
	packages []string // Debian packages that provide it
	found    []string // programs in PATH, and patterns of absolute paths, that these packages contain
}

// needs has the requirements that Need knows, except "root", which no package provides.
var needs = map[string]need{
	"bindfs":         {[]string{"bindfs", "fuse3"}, []string{"bindfs"}},
	"btrfs":          {[]string{"btrfs-progs"}, []string{"mkfs.btrfs"}},
	"fuse-overlayfs": {[]string{"fuse-overlayfs", "fuse3"}, []string{"fuse-overlayfs"}},
	"stress-ng":      {[]string{"stress-ng"}, []string{"stress-ng"}},
	"chromium":       {[]string{"chromium"}, []string{"chromium"}},
	"ip":             {[]string{"iproute2"}, []string{"ip"}},
	"pasta":          {[]string{"passt"}, []string{"pasta"}},
	"docker":         {[]string{"docker.io", "docker-compose", "iptables", "iproute2", "curl"}, []string{"dockerd", "docker-compose", "iptables", "ip", "curl"}},
	"podman": {
		[]string{"podman", "podman-compose", "runc", "netavark", "aardvark-dns", "iptables", "iproute2", "curl"},
		[]string{"podman", "podman-compose", "runc", "/usr/lib/podman/netavark", "/usr/lib/podman/aardvark-dns", "iptables", "ip", "curl"},
	},
	// A private Ceph, and the part of QEMU that reads its images.
	"ceph": {
		[]string{"ceph-mon", "ceph-osd", "ceph-common", "qemu-block-extra"},
		[]string{"ceph-mon", "ceph-osd", "ceph-authtool", "monmaptool", "ceph", "rbd", "/usr/lib/*/qemu/block-rbd.so"},
	},
	"radosgw": {[]string{"radosgw"}, []string{"radosgw", "radosgw-admin"}},
	"ext4":    {[]string{"e2fsprogs"}, []string{"mkfs.ext4"}},
	"git":     {[]string{"git"}, []string{"git"}},
	"groff":   {[]string{"groff-base"}, []string{"groff"}},
	"libvirt": {
		[]string{"libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients", "qemu-system-x86", "qemu-utils", "qemu-guest-agent",
			"busybox-static", "cpio", "linux-image-cloud-amd64", "e2fsprogs"},
		[]string{"libvirtd", "qemu-system-x86_64", "qemu-img", "busybox", "unshare", "mke2fs", "cpio", "/boot/vmlinuz-*"},
	},
	"mariadb": {[]string{"mariadb-server"}, []string{"mariadbd", "mariadb-install-db", "mariadb", "mariadb-dump"}},
	// What builds and tries a release for other processors and hosts: the long run alone needs it.
	"arm64":    {[]string{"gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user-static"}, []string{"aarch64-linux-gnu-gcc", "/usr/aarch64-linux-gnu/lib/libc.a", "qemu-aarch64-static"}},
	"makepkg":  {[]string{"makepkg", "libarchive-tools"}, []string{"makepkg", "bsdtar"}},
	"nix":      {[]string{"nix-bin"}, []string{"nix"}},
	"node":     {[]string{"npm"}, []string{"node"}},
	"npm":      {[]string{"npm"}, []string{"npm"}},
	"postgres": {[]string{"postgresql"}, []string{"/usr/lib/postgresql/*/bin/postgres"}},
	"pacman":   {[]string{"pacman-package-manager"}, []string{"pacman"}},
	"perl":     {[]string{"perl"}, []string{"perl"}},
	"python3":  {[]string{"python3-minimal"}, []string{"python3"}},
	"redis":    {[]string{"redis-server"}, []string{"redis-server"}},
	"rpm":      {[]string{"rpm"}, []string{"rpm"}},
	"sqlite3":  {[]string{"sqlite3"}, []string{"sqlite3"}},
	"systemd":  {[]string{"systemd", "dbus", "util-linux"}, []string{"/lib/systemd/systemd", "dbus-daemon", "unshare"}},
	"tmux":     {[]string{"tmux"}, []string{"tmux"}},
	"user-bus": {[]string{"dbus-user-session"}, []string{"/usr/lib/systemd/user/dbus.socket"}},
	"xz":       {[]string{"xz-utils"}, []string{"xz"}},
	"xfs":      {[]string{"xfsprogs"}, []string{"mkfs.xfs"}},
}

// Packages lists the Debian packages that Need may install.
func Packages() []string {
	var all []string
	for _, n := range needs {
		all = append(all, n.packages...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Need returns if the host has all named requirements: "root" for the rights of root, or a key of needs. With NoSkip, it
// installs missing packages as root, and the test fails if that is not possible. Otherwise it skips the test with the reason.
func Need(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if name == "root" {
			if os.Geteuid() != 0 {
				Lack(t, "this test needs root")
			}
			continue
		}
		n, known := needs[name]
		if !known {
			t.Fatalf("testkit.Need doesn't know %q", name)
		}
		why := n.missing()
		if why != "" && NoSkip() && os.Geteuid() == 0 {
			if err := install(n.packages); err != nil {
				t.Fatalf("%s: %v", why, err)
			}
			why = n.missing()
		}
		if why != "" {
			Lack(t, why)
		}
	}
}

// Lack ends a test that lacks something which Need does not know. The test is skipped, or fails with NoSkip.
func Lack(t testing.TB, why ...any) {
	t.Helper()
	if NoSkip() {
		t.Fatal(append([]any{"nothing may be missing here: "}, why...)...)
	}
	t.Skip(why...)
}

// missing returns which parts of n the host lacks, and which packages provide them; "" if it has all.
func (n need) missing() string {
	for _, name := range n.found {
		if !there(name) {
			return fmt.Sprintf("%s is missing (apt-get install %s)", name, strings.Join(n.packages, " "))
		}
	}
	return ""
}

func there(name string) bool {
	if filepath.IsAbs(name) {
		list, err := filepath.Glob(name)
		return err == nil && len(list) > 0
	}
	_, err := exec.LookPath(name)
	return err == nil
}

// installing is held by the test of this process that installs packages.
var installing sync.Mutex

// install installs Debian packages. A lock keeps other test processes from doing the same meanwhile.
var install = func(packages []string) error {
	installing.Lock()
	defer installing.Unlock()
	lock, err := os.Open("/var/lib/apt")
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-q", "update"},
		append([]string{"-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=600", "install"}, packages...),
	} {
		cmd := exec.Command("apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
