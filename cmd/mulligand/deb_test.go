package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

// TestPackage builds the Debian package of two versions, and takes a
// booted host through its life: installed, started by its socket, upgraded,
// removed, purged. The host's own files stay as they are: the instance writes
// into overlays.
func TestPackage(t *testing.T) {
	t.Parallel()
	old, newer := buildDeb(t, "1.0.0"), buildDeb(t, "1.0.1") // some seconds each: Go's cache knows them

	h := systemdtest.Boot(t)
	in := func(script string, args ...string) string {
		t.Helper()
		out, err := h.Exec(append([]string{"sh", "-euc", script, "test"}, args...)...)
		if err != nil {
			t.Fatalf("%s: %v: %s\n%s", script, err, out, h.Journal("mulligand"))
		}
		return strings.TrimSpace(string(out))
	}
	dir, err := os.MkdirTemp("/tmp", "mg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	in(`mount -t tmpfs tmpfs "$1"
		for d in usr etc var/lib; do
			mkdir -p "$1/$d/upper" "$1/$d/work"
			mount -t overlay -o "lowerdir=/$d,upperdir=$1/$d/upper,workdir=$1/$d/work" overlay "/$d"
		done
		mount --bind "$2" /etc/systemd/system
		mkdir "$1/state" && mount --bind "$1/state" /var/lib/systemd
		rm -f /usr/sbin/policy-rc.d # an image for containers starts nothing; a host does
		rm -f /var/lib/man-db/auto-update # the index of the host's manual pages takes long, and nobody asks it`, dir, h.UnitDir)
	// The manager sees the units of tests only: give it the package's.
	in(`for u in service socket; do ln -s "/usr/lib/systemd/system/mulligand.$u" /run/mulligan-test/units/; done`)

	const status = `mulligan status --json | grep -o '"version":"[^ "]*\|"pid":[0-9]*'`
	in(`dpkg --log=/dev/null -i "$1" 2>&1`, old)
	if got := in(`systemctl is-enabled mulligand.socket; systemctl is-active mulligand.socket; systemctl is-active mulligand.service || :`); got != "enabled\nactive\ninactive" {
		t.Fatalf("installed: %q", got)
	}
	if got := in(status); !strings.Contains(got, `"version":"1.0.0`) {
		t.Fatalf("the socket started %s", got)
	}
	in(`mkdir -p "$1/shop" && echo one >"$1/shop/file" && mulligan app add --slug shop --dir "$1/shop" && mulligan create --app shop --notes kept
		man -w mulligan mulligan-rollback mulligand >/dev/null 2>&1 || test -e /usr/share/man/man8/mulligand.8.gz
		bash -nc '. /usr/share/bash-completion/completions/mulligan'
		test "$(stat -c %a:%U /var/lib/mulligan)" = 700:root`, dir)
	t.Logf("systemd-analyze security:\n%s", in(`systemd-analyze security --no-pager mulligand.service | tail -n 1`))

	before := in(`systemctl show -P MainPID mulligand.service`)
	in(`dpkg --log=/dev/null -i "$1" 2>&1`, newer)
	if got := in(status); !strings.Contains(got, `"version":"1.0.1`) || in(`systemctl show -P MainPID mulligand.service`) == before {
		t.Errorf("upgraded: %s", got)
	}
	in(`echo two >"$1/shop/file" && mulligan rollback --app shop 1 && grep -q one "$1/shop/file"`, dir)

	in(`dpkg --log=/dev/null -r mulligan 2>&1
		test ! -e /usr/bin/mulligand && test ! -e /run/mulligan/mulligan.sock
		test -s /var/lib/mulligan/mulligan.db && test -e /etc/mulligan/mulligand.toml`)
	if got := in(`systemctl is-active mulligand.service mulligand.socket || :`); strings.Contains(got, "active\n") && !strings.HasPrefix(got, "inactive") {
		t.Errorf("removed: %q", got)
	}
	in(`dpkg --log=/dev/null -P mulligan 2>&1
		test ! -e /etc/mulligan && test -s /var/lib/mulligan/mulligan.db`)
}

// buildDeb builds the package in a clone of the commit, as a builder would.
func buildDeb(t *testing.T, version string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mulligan")
	run := func(wd, name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = wd
		cmd.Env = append(os.Environ(), "DPKG_DEB_COMPRESSOR_TYPE=none") // larger, and packed in no time
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	run(".", "git", "-c", "safe.directory=*", "clone", "-q", "../..", dir)
	run(dir, "make", "deb", "VERSION="+version)
	found, err := filepath.Glob(filepath.Join(dir, "bin", "deb", "*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return found[0]
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Two builds of one commit are the same package.
func TestLongPackageIsReproducible(t *testing.T) {
	testkit.NeedLong(t)
	if a, b := read(t, buildDeb(t, "1.0.0")), read(t, buildDeb(t, "1.0.0")); !bytes.Equal(a, b) {
		t.Errorf("two builds of one commit differ: %d and %d bytes", len(a), len(b))
	}
}
