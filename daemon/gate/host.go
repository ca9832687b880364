package gate

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"mulligan/errs"
)

// checkHost refuses names that are not the daemon's: a page elsewhere can have
// its own name point here (DNS rebinding), and then it is its own origin.
// The port is not looked at, since it changes where it is forwarded.
func (d *listener) checkHost(r *http.Request) error {
	if name := hostName(r.Host); name != "" && (d.loopback && isLoopback(name) || d.names[name]) {
		return nil
	}
	return errs.New(errs.Denied, opAdmit, "this daemon does not serve the host name %.128q", r.Host).
		WithHint("use the address that the daemon listens on, or add the name to hosts in mulligand.toml")
}

// checkOrigin refuses what another origin's page sent. A browser says which one
// it was; other programs say nothing. Following a link to the page is no harm.
func checkOrigin(r *http.Request) error {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return foreign(origin)
		}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); isAPI(r.URL.Path) && (site == "cross-site" || site == "same-site") {
		return foreign(site)
	}
	return nil
}

func foreign(from string) error {
	return errs.New(errs.Denied, opAdmit, "the request comes from a page of another origin (%.128q)", from).
		WithHint("open the page with: mulligan ui")
}

// isAPI reports whether path is of more than the page's own files.
func isAPI(path string) bool { return strings.HasPrefix(path, "/api/") || path == "/metrics" }

// hostName is the name in a Host header, in lower case, without its port.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// isLoopback reports whether name is one of loopback's. Names below .localhost
// are nobody else's to hand out (RFC 6761, section 6.3).
func isLoopback(name string) bool {
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.Unmap().IsLoopback()
}
