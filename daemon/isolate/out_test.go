package isolate

import (
	"net/netip"
	"testing"
)

// TestResolvConf replaces resolvers that are on the host, and leaves alone a file that names none of those.
func TestResolvConf(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("fe80::7")}
	for _, c := range []struct{ host, want string }{
		{"search example.org\nnameserver 192.0.2.1\n", ""},
		{"# stub\nnameserver 127.0.0.53\noptions edns0\nsearch example.org", "# stub\nnameserver 169.254.1.1\noptions edns0\nsearch example.org\n"},
		{"nameserver 192.0.2.7\nnameserver ::1\nnameserver fe80::7%eth0\nnameserver 192.0.2.1\n", "nameserver 169.254.1.1\nnameserver 192.0.2.1\n"},
		{"options timeout:1\n", "options timeout:1\nnameserver 169.254.1.1\n"},
		{"", "nameserver 169.254.1.1\n"},
	} {
		if got := string(ResolvConf([]byte(c.host), own)); got != c.want {
			t.Errorf("for the host's %q a fork has %q, want %q", c.host, got, c.want)
		}
	}
}

// TestPastaSays shortens what pasta writes when it cannot start.
func TestPastaSays(t *testing.T) {
	const text = "Failed to send 46 bytes to syslog\nNo external routable interface for IPv4\n\nExternal interface not usable\n"
	if got, want := sayings(text), "No external routable interface for IPv4; External interface not usable"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
