package gate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"mulligan/daemon/loopback"
	"mulligan/errs"
	"mulligan/ipc"
)

// listener serves a TCP port, at one address or at both of the loopback.
type listener struct {
	l        net.Listener
	srv      *http.Server
	tls      bool
	pageOnly bool            // admits only sessions, and neither tokens nor guests
	loopback bool            // it has the names of the loopback
	alone    bool            // nobody else can listen where names below .localhost lead
	names    map[string]bool // its other names
	outside  string          // the name in links if the loopback is not used
}

// TLS is a certificate and its key.
type TLS struct{ Cert, Key string }

// CheckAddr checks addr, HOST:PORT. Without a certificate, it must be an address of the loopback.
func CheckAddr(addr string, hasTLS bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return errs.New(errs.Invalid, "", "%q is not a TCP address", addr).WithHint("write it like 127.0.0.1:7700")
	}
	ip, err := netip.ParseAddr(host)
	if host == "localhost" || err == nil && ip.Unmap().IsLoopback() || hasTLS {
		return nil
	}
	return errs.New(errs.Invalid, "", "%s is not on loopback, and there is no certificate", addr).
		WithHint("listen on 127.0.0.1, or set tls_cert and tls_key in mulligand.toml")
}

// Listen serves the API and the page on addr until Close.
func (g *Gate) Listen(addr string, files TLS) error {
	const op = "listen"
	if err := CheckAddr(addr, files.Cert != ""); err != nil {
		return errs.Wrap(errs.Invalid, op, err)
	}
	var cfg *tls.Config
	if files.Cert != "" {
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			return errs.Wrap(errs.Invalid, op, err)
		}
		cfg = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return errs.Wrap(errs.Unavailable, op, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errs.Also(errs.New(errs.Unavailable, op, "the daemon is stopping"), l.Close())
	}
	other, alone, err := loopback.Twin(l)
	if err != nil {
		g.cfg.Log.Warn("links to the page have a port of their own: at this one, another program could pose as the page", "err", err)
	}
	g.public = g.open(l, other, cfg, false)
	g.public.alone = alone
	if g.forPage() != g.public {
		return nil
	}
	rec, err := g.read()
	if err != nil {
		g.cfg.Log.Warn("the page's sessions cannot be resumed", "err", err)
	} else if rec.Port == g.public.port() {
		g.restore(rec)
	}
	return nil
}

// listenRetry is the pause after which the gate tries again to listen.
const listenRetry = 5 * time.Second

// Provide serves TCP like Listen. While that fails, as when another program has the port or the host does not have the address yet, Problem
// says why, and Provide's goroutine tries again until Close. The sessions of the last process are over then: whoever had the port meanwhile could
// pass the proof of a page on.
func (g *Gate) Provide(addr string, files TLS) {
	if g.provided(addr, files) {
		return
	}
	g.mu.Lock()
	g.saved() // there are no sessions yet
	g.mu.Unlock()
	go func() {
		tick := time.NewTicker(listenRetry)
		defer tick.Stop()
		for {
			select {
			case <-g.done:
				return
			case <-tick.C:
			}
			if g.provided(addr, files) {
				return
			}
		}
	}()
}

// provided calls Listen, and notes why it failed.
func (g *Gate) provided(addr string, files TLS) bool {
	err, problem := g.Listen(addr, files), ""
	if err != nil {
		problem = fmt.Sprintf("TCP at %s is not served, and is tried again: %s", addr, errs.Words(err))
	}
	g.mu.Lock()
	changed := problem != g.problem
	g.problem = problem
	g.mu.Unlock()
	switch {
	case err == nil:
		g.cfg.Log.Info("serving TCP", "addr", addr, "tls", files.Cert != "")
	case changed:
		g.cfg.Log.Error("TCP is not served, and is tried again", "addr", addr, "err", err)
	}
	return err == nil
}

// Problem says why TCP is not served; it is "" if nothing is wrong.
func (g *Gate) Problem() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.problem
}

// Addr returns the TCP address; nil if TCP is not served.
func (g *Gate) Addr() net.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.public == nil {
		return nil
	}
	return g.public.l.Addr()
}

// open starts to serve a listener, and its twin if it is not nil. The caller must hold g.mu.
func (g *Gate) open(l net.Listener, other *net.TCPListener, cfg *tls.Config, pageOnly bool) *listener {
	d := &listener{l: l, tls: cfg != nil, pageOnly: pageOnly, names: map[string]bool{}}
	ip, err := netip.ParseAddrPort(l.Addr().String())
	if err == nil {
		addr := ip.Addr().Unmap()
		d.loopback = addr.IsLoopback() || addr.IsUnspecified()
		d.names[addr.String()] = !addr.IsUnspecified()
		d.outside = addr.String()
		if addr.IsUnspecified() {
			d.outside = "localhost"
		}
	}
	for _, name := range g.cfg.Hosts {
		d.names[hostName(name)] = true
	}
	if len(g.cfg.Hosts) > 0 {
		d.outside = hostName(g.cfg.Hosts[0])
	}
	d.srv = ipc.NewServer(ipc.Handle(func(w http.ResponseWriter, r *http.Request) error { return g.serve(d, w, r) }), g.conns)
	d.srv.TLSConfig = cfg
	all := []net.Listener{l}
	if other != nil {
		all = append(all, other)
	}
	for _, at := range all {
		go func() {
			var err error
			if cfg != nil {
				err = d.srv.ServeTLS(g.conns.Listen(at), "", "")
			} else {
				err = d.srv.Serve(g.conns.Listen(at))
			}
			if !errors.Is(err, http.ErrServerClosed) {
				g.cfg.Log.Error("TCP is no longer served", "addr", at.Addr().String(), "err", err)
			}
		}()
	}
	return d
}

// name returns the host for a link: label below .localhost if both addresses of the loopback are served.
func (d *listener) name(label string) string {
	if d.alone && !d.tls { // no certificate has such a name
		return label + ".localhost"
	}
	return d.outside
}

func (d *listener) url(host string) string {
	_, port, _ := net.SplitHostPort(d.l.Addr().String()) // it is a TCP address
	if d.tls {
		return "https://" + net.JoinHostPort(host, port)
	}
	return "http://" + net.JoinHostPort(host, port)
}

// pageListener returns the listener of the page, and opens one if necessary. The caller must hold g.mu.
func (g *Gate) pageListener() (*listener, error) {
	if g.closed {
		return nil, errs.New(errs.Unavailable, "", "the daemon is stopping")
	}
	if d := g.forPage(); d != nil {
		return d, nil
	}
	l, other, err := loopback.Listen(0)
	if err != nil {
		return nil, err
	}
	g.openPage(l, other)
	return g.page, nil
}

// forPage returns the listener that links to the page lead to; nil if there is none yet. The caller must hold g.mu.
func (g *Gate) forPage() *listener {
	if g.public != nil && (g.public.tls || g.public.alone) {
		return g.public
	}
	return g.page
}

// openPage serves the page's own listener until no session is left. The caller must hold g.mu.
func (g *Gate) openPage(l, other *net.TCPListener) {
	g.page = g.open(l, other, nil, true)
	g.page.alone = true
	go g.watchPage(g.page)
}

// watchPage closes the page's own listener when no session or invitation is left.
func (g *Gate) watchPage(d *listener) {
	tick := time.NewTicker(codeLife)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-g.done:
			return
		}
		g.mu.Lock()
		g.sweep(g.cfg.Now())
		over := len(g.codes)+len(g.sessions) == 0
		if over {
			g.page = nil
			g.saved()
		}
		g.mu.Unlock()
		if over {
			d.srv.Close() // all requests that are under way are without a valid session
			return
		}
	}
}

// Close stops serving. It waits for requests under way until ctx ends.
func (g *Gate) Close(ctx context.Context) error {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		close(g.done)
	}
	listeners := []*listener{g.public, g.page}
	g.mu.Unlock()
	var all []error
	for _, d := range listeners {
		if d != nil && d.srv.Shutdown(ctx) != nil {
			all = append(all, d.srv.Close()) // connections of slow clients are closed
		}
	}
	return errors.Join(all...)
}
