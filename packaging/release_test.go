package packaging

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/testkit"
)

// TestLongRelease makes a whole release, looks at each of its files, and runs its programs: those for this processor in an empty root, those
// for ARM under emulation.
func TestLongRelease(t *testing.T) {
	testkit.NeedLong(t)
	testkit.Need(t, "root", "arm64", "makepkg")
	dir := clone(t)
	const where = "https://downloads.example/mulligan"
	run(t, dir, "make", "release", "VERSION=1.2.3", "RELEASE_URL="+where, "RELEASE_NAME=example.downloads/mulligan")
	out := filepath.Join(dir, "bin/release")

	// Each file is what SHA256SUMS says, and none is missing there.
	sums := map[string]string{}
	for line := range strings.Lines(string(read(t, filepath.Join(out, "SHA256SUMS")))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
		if h := sha256.Sum256(read(t, filepath.Join(out, name))); hex.EncodeToString(h[:]) != sum {
			t.Errorf("%s is not what SHA256SUMS says", name)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, name := range []string{
			"mulligan_1.2.3_linux_ARCH.deb", "mulligan_1.2.3_linux_ARCH.rpm", "mulligan_1.2.3_linux_ARCH.pkg.tar.zst", "mulligan_1.2.3_linux_ARCH.mcpb.zip",
			"mulligan-client_1.2.3_linux_ARCH.tar.gz", "mulligan-static_1.2.3_linux_ARCH.tar.gz",
			"mulligan_1.2.3_linux_ARCH.cdx.json", "mulligand_1.2.3_linux_ARCH.cdx.json", "mulligand-static_1.2.3_linux_ARCH.cdx.json",
		} {
			if name = strings.ReplaceAll(name, "ARCH", arch); sums[name] == "" {
				t.Errorf("%s is not in SHA256SUMS", name)
			}
		}
	}

	// The static programs need nothing of a host: a root that has them alone.
	root := t.TempDir()
	for _, name := range []string{"mulligan", "mulligand"} {
		unpack(t, filepath.Join(out, "mulligan-static_1.2.3_linux_amd64.tar.gz"), name, filepath.Join(root, name))
	}
	for _, line := range []string{"/mulligan version", "/mulligand --version"} {
		if got := output(t, "chroot", append([]string{root}, strings.Fields(line)...)...); !strings.Contains(got, "1.2.3") {
			t.Errorf("%s in an empty root: %s", line, got)
		}
	}
	arm := t.TempDir()
	unpack(t, filepath.Join(out, "mulligan-client_1.2.3_linux_arm64.tar.gz"), "mulligan", filepath.Join(arm, "mulligan"))
	run(t, out, "dpkg-deb", "-x", "mulligan_1.2.3_linux_arm64.deb", arm)
	for _, line := range []string{arm + "/mulligan version", arm + "/usr/bin/mulligan version", arm + "/usr/bin/mulligand --version"} {
		if got := output(t, "qemu-aarch64-static", append([]string{"-L", "/usr/aarch64-linux-gnu"}, strings.Fields(line)...)...); !strings.Contains(got, "1.2.3") {
			t.Errorf("%s: %s", line, got)
		}
	}

	// The registry's entry names the bundles, which have the client and say how to start it.
	var entry struct {
		Name, Version string
		Packages      []struct{ Identifier, FileSHA256 string }
	}
	if err := json.Unmarshal(read(t, filepath.Join(out, "server.json")), &entry); err != nil || entry.Version != "1.2.3" || len(entry.Packages) != 2 {
		t.Fatalf("server.json: %+v %v", entry, err)
	}
	for _, p := range entry.Packages {
		name := strings.TrimPrefix(p.Identifier, where+"/")
		if sums[name] == "" || sums[name] != p.FileSHA256 {
			t.Errorf("server.json names %q with the sum %s", name, p.FileSHA256)
		}
		z, err := zip.OpenReader(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		var manifest struct {
			Version string
			Server  struct {
				EntryPoint string `json:"entry_point"`
			}
		}
		f, err := z.Open("manifest.json")
		if err == nil {
			err = json.NewDecoder(f).Decode(&manifest)
		}
		program, statErr := z.Open(manifest.Server.EntryPoint)
		if err != nil || statErr != nil || manifest.Version != "1.2.3" {
			t.Fatalf("%s: %+v %v %v", name, manifest, err, statErr)
		}
		if info, err := program.Stat(); err != nil || info.Mode()&0o111 == 0 || info.Size() < 1<<20 {
			t.Errorf("%s: the client: %v %v", name, info, err)
		}
		z.Close()
	}

	// Homebrew's file names the archives with their sums, and what it takes from them is there.
	cask := string(read(t, filepath.Join(out, "homebrew/Casks/mulligan.rb")))
	for _, arch := range []string{"amd64", "arm64"} {
		archive := "mulligan-client_1.2.3_linux_" + arch + ".tar.gz"
		if !strings.Contains(cask, sums[archive]) {
			t.Errorf("the cask doesn't name %s with its sum", archive)
		}
		taken := 0
		for _, line := range strings.Split(cask, "\n") {
			f := strings.Split(line, `"`)
			if len(f) < 2 || !(strings.Contains(f[0], "binary") || strings.Contains(f[0], "manpage") || strings.Contains(f[0], "completion")) {
				continue
			}
			unpack(t, filepath.Join(out, archive), f[1], filepath.Join(t.TempDir(), "file"))
			taken++
		}
		if taken == 0 {
			t.Errorf("the cask takes nothing from %s", archive)
		}
	}

	// Arch's own way: from the archive of the sources, as an ordinary user.
	testPKGBUILD(t, out)
}

// unpack writes a file of a tar.gz, which has to be there, to a path.
func unpack(t *testing.T, archive, name, path string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("%s in %s: %v", name, archive, err)
		}
		if h.Name != name {
			continue
		}
		to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, h.FileInfo().Mode())
		if err == nil {
			_, err = io.Copy(to, r)
		}
		if err != nil {
			t.Fatal(err)
		}
		to.Close()
		return
	}
}

// testPKGBUILD builds and packages the sources with makepkg. That refuses to run as root: in a user namespace it is not, and may
// still read what root's Go has loaded.
func testPKGBUILD(t *testing.T, release string) {
	dir := t.TempDir()
	for from, to := range map[string]string{"aur/mulligan.pkgbuild": "PKGBUILD", "mulligan-1.2.3.tar.gz": "mulligan_1.2.3.tar.gz"} {
		if err := os.WriteFile(filepath.Join(dir, to), read(t, filepath.Join(release, from)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, "unshare", "--user", "--map-user=1000", "--map-group=1000", "makepkg", "--nodeps", "--noconfirm")
	files, err := filepath.Glob(filepath.Join(dir, "mulligan-1.2.3-*.pkg.tar*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("makepkg made %q %v", files, err)
	}
	list := output(t, "bsdtar", "-tf", files[0])
	for _, name := range []string{"usr/bin/mulligan", "usr/bin/mulligand", "usr/lib/systemd/system/mulligand.socket", "etc/mulligan/mulligand.toml", ".PKGINFO"} {
		if !strings.Contains("\n"+list+"\n", "\n"+name+"\n") {
			t.Errorf("the package of makepkg lacks %s", name)
		}
	}
}

// TestLongFlake builds the flake, with this host's programs in place of nixpkgs, and looks that the hash of the modules is true.
func TestLongFlake(t *testing.T) {
	testkit.NeedLong(t)
	testkit.Need(t, "root", "nix")
	dir := clone(t)
	standin, err := filepath.Abs("testdata/nixpkgs")
	if err != nil {
		t.Fatal(err)
	}
	result := filepath.Join(t.TempDir(), "result")
	// Nix keeps what it builds in /nix, which this host may not have: a file system of its own holds it while the test runs.
	script := `mkdir -p /nix && mount -t tmpfs tmpfs /nix && cd "$1" && export XDG_CACHE_HOME="$4" NIX_CONFIG='experimental-features = nix-command flakes
sandbox = false
substitute = false
build-users-group =' && nix build --impure --no-write-lock-file --override-input nixpkgs "path:$2" -o "$3" . >&2 && cp -rL "$3" "$3.copy" && go mod vendor -o "$4/vendor" && nix hash path --type sha256 --sri "$4/vendor"`
	made := false
	if _, err := os.Lstat("/nix"); os.IsNotExist(err) {
		made = true
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-euc", script, "sh", dir, standin, result, t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if made {
		os.Remove("/nix") // an empty folder
	}
	if err != nil {
		t.Fatalf("nix: %v\n%s", err, out)
	}
	if hash := strings.TrimSpace(string(out)); !strings.Contains(string(read(t, filepath.Join(dir, "packaging/package.nix"))), hash) {
		t.Errorf("packaging/package.nix has another hash than that of the modules, %s", hash)
	}
	for _, line := range []string{"mulligan version", "mulligand --version"} {
		f := strings.Fields(line)
		if got := output(t, filepath.Join(result+".copy/bin", f[0]), f[1]); !strings.Contains(got, "0.1.0") {
			t.Errorf("%s: %s", line, got)
		}
	}
	if unit := string(read(t, result+".copy/lib/systemd/system/mulligand.service")); !strings.Contains(unit, "ExecStart=/nix/store/") {
		t.Errorf("the unit starts another program: %s", unit)
	}
}
