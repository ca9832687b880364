package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Build builds one of mulligan's programs from its package, as make build does but without a version, and puts a copy at path.
// cgo is "0" or "1". What was built is kept in the cache folder of tests, where the go command finds whether it is still what
// the sources say; so the tests of all packages, and the next run, link a program once.
func Build(path, pkg, cgo string) error {
	tags := "libvirt_dlopen"
	if cgo == "0" {
		tags = "nethttpomithttp2" // as in the Makefile, so that the client's packages are compiled once
	}
	return build(path, filepath.Base(pkg), "CGO_ENABLED="+cgo, "build", "-buildvcs=false", "-tags", tags, pkg)
}

// Unwatched returns the path of the running test program without the race detector: the program itself if it has none, else one that
// is built in dir. It is for what the program does as another process and is not under test, such as being an app: with the race
// detector, a start takes several times as long. The current folder must be that of the package.
func Unwatched(dir string) (string, error) {
	if info, ok := debug.ReadBuildInfo(); ok && !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return os.Executable()
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	name := filepath.Base(wd) + ".test"
	path := filepath.Join(dir, name)
	return path, build(path, name, "CGO_ENABLED=1", "test", "-c", "-vet=off", "-tags", "libvirt_dlopen", ".")
}

func build(path, name, cgo, command string, args ...string) error {
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
	built := filepath.Join(dir, name)
	cmd := exec.Command("go", append([]string{command, "-trimpath", "-ldflags", "-s -w", "-o", built}, args...)...)
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s %s: %w: %s", command, args[len(args)-1], err, out)
	}
	b, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	return WriteProgram(path, b)
}

// WriteProgram writes a program or a script that the test may run at once, and that may be running already. The kernel does not run a file that any
// process has open for writing, and does not open a file for writing while it is being run (ETXTBSY). So WriteProgram renames a new file over the
// old one, and holds ForkLock while the new file is open: a child that is forked meanwhile would keep the new file open until the child's exec.
func WriteProgram(path string, data []byte) error {
	syscall.ForkLock.RLock()
	err := os.WriteFile(path+".new", data, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		return err
	}
	if err := os.Chmod(path+".new", 0o755); err != nil { // other users run it too, whatever the umask
		return err
	}
	return os.Rename(path+".new", path)
}
