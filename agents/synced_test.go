package agents

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mulligan/testkit/sysfault"
)

func TestMain(m *testing.M) {
	sysfault.Launch()
	if dir := os.Getenv("MULLIGAN_TEST_INSTALL"); dir != "" {
		if err := installAll(dir); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// installAll writes the settings of every agent below dir. The state folder is there.
func installAll(dir string) error {
	p := Place{Scope: User, Home: dir, Project: dir, Program: "/usr/bin/mulligan", getenv: func(string) string { return "" }}
	b := Backups{filepath.Join(dir, "state")}
	for _, a := range all {
		list, err := a.Install(p, b)
		if err == nil {
			err = b.Apply(list)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestSettingsAreSynced: after a power cut each file is the old one or the new one, whole, and what it was before is kept.
func TestSettingsAreSynced(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "MULLIGAN_TEST_INSTALL="+dir)
	cmd.Stderr = os.Stderr
	ids := regexp.MustCompile(`/\.mulligan-[^/]*$`)
	p, err := sysfault.Start(cmd, sysfault.Options{Name: func(p string) string {
		if rel, err := filepath.Rel(dir, p); err == nil && filepath.IsLocal(rel) {
			return ids.ReplaceAllString(filepath.Join("/", rel), "/temp")
		}
		return ""
	}})
	if err != nil {
		t.Fatal(err)
	}
	p.Arm(sysfault.Fault{})
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	<-p.Ended()
	calls, last, renamed := p.Disarm().Calls, map[string]string{}, 0
	for i, call := range calls {
		do, name, _ := strings.Cut(call, " ")
		if do != "rename" {
			last[name] = do
			continue
		}
		renamed++
		if last[path.Join(path.Dir(name), "temp")] != "sync" {
			t.Errorf("%s got its name before it was synced", name)
		}
		if !slices.Contains(calls[i:], "sync "+path.Dir(name)) {
			t.Errorf("%s got its name, and its folder is not synced", name)
		}
	}
	if renamed < 2*len(all) {
		t.Errorf("%d files were written for %d agents: %q", renamed, len(all), calls)
	}
}
