//go:build cgo && libvirt_dlopen

package virt

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"mulligan/privsep"
	"mulligan/testkit"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "opened" {
		text, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Print(strings.Contains(string(text), "libvirt.so"))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestOpened starts a process by the names of the daemon's helpers, which do without libvirt, and by others, which do not.
func TestOpened(t *testing.T) {
	testkit.Need(t, "libvirt")
	ask := func(name string) string {
		t.Helper()
		cmd := exec.Command("/proc/self/exe", "opened")
		cmd.Args[0] = name
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for _, name := range []string{privsep.WorkerName, "mulligand-fork", "mulligand-inside", "mulligand-host"} {
		if got := ask(name); got != "false" {
			t.Errorf("in %s libvirt is open: %s", name, got)
		}
	}
	for _, name := range []string{"mulligand", "/usr/bin/mulligand", "mulligand-worker-2", "x"} {
		if got := ask(name); got != "true" {
			t.Errorf("in %s libvirt is open: %s", name, got)
		}
	}
}
