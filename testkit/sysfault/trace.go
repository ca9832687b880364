package sysfault

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// traceEnv names the folder to the process that Trace starts.
const traceEnv = "MULLIGAN_SYSFAULT_TRACE"

// Trace runs do in a process of its own, on a new folder that prepare fills, and returns the calls that were made in that folder, in order, with
// paths relative to it. The process runs the test as far as to this call, so the test must begin with it.
func Trace(t *testing.T, prepare func(dir string), do func(dir string) error) []string {
	t.Helper()
	if dir := os.Getenv(traceEnv); dir != "" {
		if err := do(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir := t.TempDir()
	if prepare != nil {
		prepare(dir)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), traceEnv+"="+dir, "GORACE=atexit_sleep_ms=0")
	calls, err := Watch(cmd, func(path string) string {
		if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
			return rel
		}
		return ""
	})
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// Watch runs cmd to its end, and returns the calls that it and its children made, with the names that name gives to paths ("": none).
func Watch(cmd *exec.Cmd, name func(path string) string) ([]string, error) {
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	p, err := Start(cmd, Options{Name: name})
	if err != nil {
		return nil, err
	}
	p.Arm(Fault{})
	if err := p.Wait(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, said.String())
	}
	<-p.Ended()
	return p.Disarm().Calls, nil
}

// Unsynced returns what a power cut after the last of calls could undo, or cut in half, each as a sentence: a file that was not synced after
// the last write to it, a temporary file (its name begins with a dot) that was not synced before the next renaming in its folder, and a
// folder that was not synced after a name was given in it: not so by mkdir, whose folder may have been there. A sync of a whole filesystem is as good.
func Unsynced(calls []string) (lost []string) {
	for i, call := range calls {
		do, name, _ := strings.Cut(call, " ")
		until, object := calls[i+1:], name
		switch do {
		case "write", "truncate", "allocate":
			if name == "socket" {
				continue
			}
			renamed := slices.IndexFunc(until, func(c string) bool {
				to, ok := strings.CutPrefix(c, "rename ")
				return ok && path.Dir(to) == path.Dir(name)
			})
			if strings.HasPrefix(path.Base(name), ".") && renamed >= 0 {
				until = until[:renamed]
			}
		case "rename", "link", "symlink":
			object = path.Dir(name)
		default:
			continue
		}
		if !slices.ContainsFunc(until, func(c string) bool { return c == "sync "+object || strings.HasPrefix(c, "syncfs ") }) {
			lost = append(lost, fmt.Sprintf("After %q, %s is not synced in time.", call, object))
		}
	}
	slices.Sort(lost)
	return slices.Compact(lost)
}
