package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/moby/client"

	"mulligan/engine"
	"mulligan/testkit"
)

// TestAside runs programs beside a container: as another user, without a network, with the container's own folders and one of the host's. They end with
// their context, with a signal, or with the container that they run in.
func TestAside(t *testing.T) {
	testkit.Need(t, "root")
	onSome(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.run(spec{name: "of", command: "echo hers >/data/file; chmod 666 /data/file; " + wait, volume: "rows"}) // everybody could write there
		dir := filepath.Join(s.h.Dir, "given")
		must(t, os.Mkdir(dir, 0o755))
		must(t, os.Chown(dir, 4711, 4712))
		p := s.project("container:of")
		a := &engine.Aside{Project: p, Of: "of", Name: "beside", User: "4711:4712", Folders: []engine.Folder{{Path: dir}, {Path: s.h.Dir, ReadOnly: true}}}
		exists := func() bool {
			_, err := s.api.ContainerInspect(ctx, "beside", client.ContainerInspectOptions{})
			return err == nil
		}
		run := func(a *engine.Aside, script string) (string, int) {
			t.Helper()
			var out bytes.Buffer
			got, err := a.Start(ctx, []string{"/bin/sh", "-c", script}, &out, &out)
			must(t, err)
			status, err := got.Wait()
			must(t, err)
			return strings.TrimSpace(out.String()), status
		}
		testkit.Eventually(t, "the container has its file", func() bool {
			v, err := p.Volume(ctx, "rows")
			must(t, err)
			_, err = os.Stat(filepath.Join(v.Dir, "file"))
			return err == nil
		})
		script := fmt.Sprintf(`id -u; id -g; cat /data/file; echo mine >/data/file || echo no; echo new >%[1]s/new && cat %[1]s/new; echo x >%[2]s/x || echo no
			ls /sys/class/net; grep CapPrm /proc/self/status; exit 5`, dir, s.h.Dir)
		got, status := run(a, "exec 2>&1; "+script) // in one stream: the engine may put a part of one between two of another
		var words []string
		for line := range strings.Lines(got) {
			if !strings.Contains(line, "cannot create") {
				words = append(words, strings.Fields(line)...)
			}
		}
		if want := "4711 4712 hers no new no lo CapPrm: 0000000000000000"; status != 5 || strings.Join(words, " ") != want {
			t.Errorf("%d, %q, want %q", status, words, want)
		}
		long := func(ctx context.Context) *engine.Program {
			t.Helper()
			var out bytes.Buffer
			got, err := a.Start(ctx, []string{"/bin/sh", "-c", "trap 'exit 7' TERM; touch " + dir + "/runs; while :; do sleep 0.1; done"}, &out, &out)
			must(t, err)
			testkit.Eventually(t, "it runs", func() bool { return os.Remove(dir+"/runs") == nil })
			return got
		}
		one := long(ctx)
		must(t, one.Signal(syscall.SIGTERM))
		if status, err := one.Wait(); status != 7 || err != nil {
			t.Errorf("after a signal: %d, %v", status, err)
		}
		must(t, one.Signal(syscall.SIGTERM)) // it has ended

		limited, cancel := context.WithCancel(ctx)
		two := long(limited)
		cancel()
		if _, err := two.Wait(); err == nil {
			t.Error("a program outlives its context")
		}
		testkit.Eventually(t, "its processes end", func() bool {
			all, err := filepath.Glob("/proc/[0-9]*/cmdline")
			must(t, err)
			return !slices.ContainsFunc(all, func(name string) bool {
				line, _ := os.ReadFile(name) // it may have ended
				return bytes.Contains(line, []byte("touch "+dir+"/runs"))
			})
		})

		three := long(ctx)
		must(t, a.Remove(ctx))
		if _, err := three.Wait(); err == nil && exists() {
			t.Error("a program outlives its container")
		}
		if exists() {
			t.Error("the container is left")
		}
		run(a, "true")
		b := &engine.Aside{Project: p, Of: "of", Name: "beside", User: "4711:4712"}
		must(t, b.Sweep(ctx)) // as a process does that comes after one that was killed
		if exists() {
			t.Error("the container of a dead process is left")
		}
		s.run(spec{name: "beside", command: wait})
		if _, err := b.Start(ctx, []string{"true"}, nil, nil); err == nil || !strings.Contains(err.Error(), "is not mulligan's") || !exists() {
			t.Errorf("with a container of somebody else's: %v", err)
		}
	})
}
