package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Debian returns a folder with the files of packages of another release of Debian, and of all that they depend on. Nothing is installed: the
// packages are unpacked, and none of their scripts runs. The host must be a Debian.
func Debian(t testing.TB, release string, packages ...string) (root string) {
	t.Helper()
	Need(t, "root")
	kept, err := Kept(strings.Join(append([]string{"debian", release}, packages...), "-"), func(dir string) error {
		return unpackDebian(t.TempDir(), dir, release, packages)
	})
	if err != nil {
		t.Fatalf("Debian's release %s: %v", release, err)
	}
	return kept
}

// unpackDebian unpacks packages into root. work is an empty folder for what apt keeps.
func unpackDebian(work, root, release string, packages []string) error {
	run := func(name string, args ...string) (string, error) {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", name, err, out)
		}
		return string(out), err
	}
	uris, err := run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
	if err != nil {
		return err
	}
	uri, _, _ := strings.Cut(uris, "\n")
	source := fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", uri, release)
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(work, d), 0o755); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"sources.list": source, "status": ""} { // nothing is installed there
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	apt := []string{"-q", "-y", "--no-install-recommends", "--download-only", "-o", "APT::Sandbox::User=root"}
	for key, path := range map[string]string{"Dir::Etc::sourcelist": "sources.list", "Dir::Etc::sourceparts": "none", "Dir::State::lists": "lists", "Dir::State::status": "status", "Dir::Cache": "cache"} {
		apt = append(apt, "-o", key+"="+filepath.Join(work, path))
	}
	if _, err := run("apt-get", append(apt, "update")...); err != nil {
		return err
	}
	if _, err := run("apt-get", append(append(apt, "install"), packages...)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, "cache/archives/*.deb"))
	if err != nil || len(debs) == 0 {
		return fmt.Errorf("apt-get got no packages of %q: %v", packages, err)
	}
	for _, deb := range debs {
		if _, err := run("dpkg", "-x", deb, root); err != nil {
			return err
		}
	}
	return nil
}
