package gate

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"mulligan/errs"
)

// checkHost refuses host names that are not the daemon's. Another site can make its own name resolve to this address (DNS
// rebinding), and its page would then be of the same origin. The port is not checked, because forwarding changes it.
func (d *listener) checkHost(r *http.Request) error {
	if name := hostName(r.Host); name != "" && (d.loopback && isLoopback(name) || d.names[name]) {
		return nil
	}
	return errs.New(errs.Denied, opAdmit, "this daemon does not serve the host name %.128q", r.Host).
		WithHint("use the address that the daemon listens on, or add the name to hosts in mulligand.toml")
}

// checkOrigin refuses requests from pages of other origins. Browsers send the origin; other programs do not. A navigation to
// the page by a link is allowed.
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
		WithHint("open the page with: `mulligan ui`")
}

// isAPI reports whether path belongs to the API, and not to the files of the page.
func isAPI(path string) bool { return strings.HasPrefix(path, "/api/") || path == "/metrics" }

// hostName returns the name in a Host header in lower case, without the port.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// isLoopback reports whether name is a name of the loopback. Names below .localhost always resolve to the loopback (RFC 6761,
// section 6.3).
func isLoopback(name string) bool {
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.Unmap().IsLoopback()
}
