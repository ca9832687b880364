package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Build builds one of mulligan's programs from its package, as make build does but without a version, and puts a copy at path.
// cgo is "0" or "1". What was built is kept in the cache folder of tests, where the go command finds whether it is still what
// the sources say; so the tests of all packages, and the next run, link a program once.
func Build(path, pkg, cgo string) error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	dir := filepath.Join(cache, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	built := filepath.Join(dir, filepath.Base(pkg))
	tags := "libvirt_dlopen"
	if cgo == "0" {
		tags = "nethttpomithttp2" // as in the Makefile, so that the client's packages are compiled once
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", tags, "-ldflags", "-s -w", "-o", built, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w: %s", pkg, err, out)
	}
	b, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o755)
}
