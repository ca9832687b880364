//go:build cgo && libvirt_dlopen

package virt

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"libvirt.org/go/libvirt"

	"mulligan/testkit"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "opened" {
		for _, uri := range os.Args[2:] {
			c, err := libvirt.NewConnect(uri)
			if err != nil {
				fmt.Println(err)
				continue
			}
			_, err = c.Close()
			fmt.Println(err)
		}
		text, err := os.ReadFile("/proc/self/maps")
		fmt.Print(strings.Contains(string(text), "libvirt.so"), err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestOpened starts processes that speak to libvirt, and others, which do without its library. An error of libvirt is returned, and printed
// nowhere else.
func TestOpened(t *testing.T) {
	testkit.Need(t, "libvirt")
	const none = "nowhere:///x"
	_, err := libvirt.NewConnect(none)
	if err == nil {
		t.Fatalf("there is a %s", none)
	}
	for _, c := range []struct {
		uris []string
		want string
	}{
		{nil, "false <nil>"},
		{[]string{"test:///default"}, "<nil>\ntrue <nil>"},
		{[]string{none, "test:///default"}, err.Error() + "\n<nil>\ntrue <nil>"},
	} {
		out, err := exec.Command("/proc/self/exe", append([]string{"opened"}, c.uris...)...).CombinedOutput()
		if string(out) != c.want || err != nil {
			t.Errorf("connections to %v print %q (%v), want %q", c.uris, out, err, c.want)
		}
	}
}
