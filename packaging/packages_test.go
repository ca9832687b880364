package packaging

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

// manager is a package manager: what it is called with, in a shell, to do what. $1 is the package's file.
type manager struct {
	tool            string
	install, remove string
	enabled         bool   // the socket is enabled, and listens, once the package is installed
	purge           string // removes the configuration as well; none if the manager does so with remove
}

// Debian's rpm and pacman know no other package of this host: what a package needs is not asked, and is there.
var managers = map[string]manager{
	"deb": {
		tool: "dpkg", install: `dpkg --log=/dev/null -i "$1" 2>&1`, remove: `dpkg --log=/dev/null -r mulligan 2>&1`, purge: `dpkg --log=/dev/null -P mulligan 2>&1`,
		enabled: true,
	},
	"rpm": {tool: "rpm", install: `rpm --force-debian -U --nodeps "$1" 2>&1`, remove: `rpm --force-debian -e mulligan 2>&1`},
	"archlinux": {tool: "pacman", install: `ln -sf bash /usr/bin/sh # which it is on Arch
		pacman -U -dd --noconfirm --noprogressbar "$1" 2>&1`,
		remove: `pacman -Rn --noconfirm mulligan 2>&1`},
}

var patterns = map[string]string{"deb": "*.deb", "rpm": "*.rpm", "archlinux": "*.pkg.tar.zst"}

// TestPackages builds packages of two versions, of one format in each run, and takes a booted host through the life of each: installed,
// started by its socket, upgraded, removed, purged. The host's own files stay as they are: the instances write into overlays.
func TestPackages(t *testing.T) {
	old, newer := clone(t), clone(t)
	formats := slices.Sorted(maps.Keys(managers))
	for _, i := range testkit.Sample(t, "formats", len(formats), 1) {
		format, m := formats[i], managers[formats[i]]
		builds(t, old, format, "VERSION=1.0.0")
		builds(t, newer, format, "VERSION=1.0.1")
		if format == "deb" {
			needsLibc(t, newer)
		}
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			testkit.Need(t, "systemd")
			if m.tool != "dpkg" {
				testkit.Need(t, m.tool)
			}
			m.live(t, found(t, old, format), found(t, newer, format))
		})
	}
}

// needsLibc checks that Debian's package asks for the libc that the daemon in a clone needs.
func needsLibc(t *testing.T, clone string) {
	t.Helper()
	libc := output(t, "sh", "-c", `objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1`, "sh", filepath.Join(clone, "bin/mulligand"))
	if needs := regexp.MustCompile(`libc6 \(>= ([0-9.]+)\)`).FindStringSubmatch(output(t, "dpkg-deb", "-f", found(t, clone, "deb"), "Depends")); needs == nil || "GLIBC_"+needs[1] != libc {
		t.Errorf("the daemon needs %s, and the package %q", libc, needs)
	}
}

// found returns the package of a format that was built in a clone.
func found(t *testing.T, clone, format string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(clone, "bin/packages", patterns[format]))
	if err != nil || len(files) != 1 {
		t.Fatalf("packages for %s: %q %v", format, files, err)
	}
	return files[0]
}

func (m manager) live(t *testing.T, old, newer string) {
	h := systemdtest.Boot(t)
	in := func(script string, args ...string) string {
		t.Helper()
		out, err := h.Exec(append([]string{"sh", "-euc", script, "test"}, args...)...)
		if err != nil {
			t.Fatalf("%s: %v: %s\n%s", script, err, out, h.Journal("mulligand"))
		}
		return strings.TrimSpace(string(out))
	}
	dir, err := os.MkdirTemp("", "mg")
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
	const states = `for u in socket service; do systemctl is-active mulligand.$u || :; done`
	in(m.install, old)
	want := "active\ninactive"
	if !m.enabled {
		in(`systemctl enable --now mulligand`) // as the documents say
		want = "active\nactive"
	}
	if got := in(states); got != want {
		t.Fatalf("installed: %q", got)
	}
	atBoot := `systemctl is-enabled mulligand.socket && systemctl is-enabled mulligand.service`
	in(atBoot)
	if got := in(status); !strings.Contains(got, `"version":"1.0.0`) {
		t.Fatalf("the socket started %s", got)
	}
	in(`mkdir -p "$1/shop" && echo one >"$1/shop/file" && mulligan app add --slug shop --dir "$1/shop" && mulligan create --app shop --notes kept
		test -e /usr/share/man/man1/mulligan-rollback.1.gz && test -e /usr/share/man/man8/mulligand.8.gz
		bash -nc '. /usr/share/bash-completion/completions/mulligan'
		test -s /usr/share/doc/mulligan/copyright && getent passwd mulligan-guest
		test "$(stat -c %a:%U /var/lib/mulligan)" = 700:root && test "$(stat -c %a:%U:%G /usr/bin/mulligand)" = 755:root:root
		echo '# mine' >>/etc/mulligan/mulligand.toml`, dir)

	before := in(`systemctl show -P MainPID mulligand.service`)
	in(m.install, newer)
	if got := in(status); !strings.Contains(got, `"version":"1.0.1`) || in(`systemctl show -P MainPID mulligand.service`) == before {
		t.Errorf("upgraded: %s", got)
	}
	in(`echo two >"$1/shop/file" && mulligan rollback --app shop 1 && grep -q one "$1/shop/file" && grep -q '# mine' /etc/mulligan/mulligand.toml`, dir)

	in(m.remove)
	in(`test ! -e /usr/bin/mulligand && test ! -e /usr/lib/systemd/system/mulligand.service && test ! -e /run/mulligan/mulligan.sock
		test -s /var/lib/mulligan/mulligan.db`)
	if got := in(states); strings.Contains("\n"+got, "\nactive") {
		t.Errorf("removed: %q", got)
	}
	in(m.install, newer)
	if m.enabled {
		in(atBoot)
	} else {
		in(`systemctl enable --now mulligand`)
	}
	in(`mulligan rollback --app shop 1`) // nothing is lost by a removal
	in(m.remove)
	if m.purge != "" {
		in(`grep -q '# mine' /etc/mulligan/mulligand.toml`)
		in(m.purge)
		in(`test ! -e /etc/mulligan && test -s /var/lib/mulligan/mulligan.db`)
	}
}

// clone returns a clone of the commit, as a builder has it.
func clone(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mulligan")
	run(t, ".", "git", "-c", "safe.directory=*", "clone", "-q", "..", dir)
	return dir
}

func builds(t *testing.T, dir string, args ...string) {
	t.Helper()
	run(t, dir, "make", args...)
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Two builds of one commit are the same packages.
func TestLongPackagesAreReproducible(t *testing.T) {
	testkit.NeedLong(t)
	a, b := clone(t), clone(t)
	for _, dir := range []string{a, b} {
		builds(t, dir, "packages", "VERSION=1.0.0")
	}
	for format := range managers {
		if a, b := read(t, found(t, a, format)), read(t, found(t, b, format)); !bytes.Equal(a, b) {
			t.Errorf("two packages for %s of one commit differ: %d and %d bytes", format, len(a), len(b))
		}
	}
}
