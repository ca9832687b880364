// Package gate serves the API over TCP. It identifies the caller by a bearer token, a guest's id or a page's session, and
// refuses requests that another site's page made a browser send. On the unix socket the kernel identifies the caller, and there
// is no gate.
//
// # The page, through a one-time link
//
//	mulligan ui ── POST /api/ui (socket) ──► Invite: a code, bound to the caller's uid,
//	                                         good once and for two minutes
//	browser ── GET http://x3f….localhost:PORT/login?code=… ──► login: the code becomes a
//	           cookie (HttpOnly, SameSite=Strict, 12 hours) and a page that goes on to /
//	page ── GET /api/session ──► {user, uid, csrf, key, expires_at}; csrf is in the cookie mulligan_csrf, too
//	page ── POST, PATCH, PUT, DELETE with X-CSRF-Token: csrf ──► the API, as that user
//
// Cookies ignore ports, so a browser would send the cookie to any program on this host that it visits as "localhost" or
// 127.0.0.1. Therefore each link has a random host name below .localhost, which browsers resolve to this host (RFC 6761, 6.3),
// and its session is valid only under that name. Browsers look for such a name at ::1 and at 127.0.0.1: so the daemon listens at
// both, or else a program of another user could listen at the other one and get the codes of links. If the daemon serves TCP, the
// page is there. Otherwise, or if another program has the port at the other address, a port of the loopback is opened for the
// page, and closed after the last session.
//
// # The page, after a restart of the daemon
//
// The next process opens the same port and knows the sessions. But between the two, a program of another user may have listened
// at the port, and the browser may have sent it the cookie. So the cookie alone is not enough: the page proves that it has the
// session's key, which was sent to nobody but the page and is in its memory only, and gets a new cookie.
//
//	page ── GET /resume ──► the challenge of this process, a random text
//	page ── POST /resume with X-Resume-Proof: HMAC-SHA-256(key, challenge) ──► a new cookie
//
// If the port is taken, the sessions are over: whoever has the port could pass the proof on. So are sessions that began at another port than
// the next process opens.
package gate

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

// Config says which callers the gate admits. The zero Config admits none.
type Config struct {
	// Tokens returns the caller of a bearer token, or an error if the token is not valid.
	Tokens func(ctx context.Context, secret string) (ipc.Caller, error)
	// Guests returns the guest with an id; nil means that guests are not admitted.
	Guests func(id string) (ipc.Caller, error)
	// Hosts are further host names of the daemon, beside its address and those of the loopback.
	Hosts []string
	// File is where the gate records the sessions for the next process; "" means that they end with this one. Its folder must be
	// the daemon's own.
	File string
	Log  *slog.Logger     // default: none
	Now  func() time.Time // default: time.Now
}

// Gate guards a handler. Its methods may be called from many goroutines.
type Gate struct {
	cfg   Config
	next  http.Handler
	conns *ipc.Conns

	mu       sync.Mutex
	codes    map[digest]invitation
	sessions map[digest]*session
	live     map[*request]struct{}
	public   *listener // the daemon's TCP listener; nil if there is none
	page     *listener // a listener for the page alone; nil if it is not open
	problem  string    // why TCP is not served; "" if it is, or need not be
	closed   bool
	done     chan struct{} // closed by Close

	challenge string // random; the pages of the last process prove with it that they are its pages
}

// Limits of connections: in total, and from one address.
const (
	maxConns        = 1024
	maxConnsPerPeer = 256
)

// New returns a gate in front of next, which finds the caller with ipc.CallerFrom.
func New(cfg Config, next http.Handler) *Gate {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Gate{
		cfg: cfg, next: next, conns: ipc.NewConns(maxConns, maxConnsPerPeer),
		codes: map[digest]invitation{}, sessions: map[digest]*session{}, live: map[*request]struct{}{},
		done: make(chan struct{}), challenge: secret(),
	}
}

const opAdmit = "admit"

// serve handles the requests of all listeners.
func (g *Gate) serve(d *listener, w http.ResponseWriter, r *http.Request) error {
	setHeaders(w.Header())
	err := d.checkHost(r)
	if err == nil {
		err = checkOrigin(r)
	}
	if err != nil {
		g.conns.Identify(r.Context(), nil)
		return err
	}
	if r.URL.Path == loginPath {
		return g.login(d, w, r)
	}
	if r.URL.Path == resumePath {
		g.conns.Identify(r.Context(), nil)
		return g.resume(d, w, r)
	}
	who, s, err := g.identify(d, r)
	g.conns.Identify(r.Context(), who)
	if err != nil {
		w.Header().Set("WWW-Authenticate", `Bearer realm="mulligan"`)
		return err
	}
	if who == nil {
		g.next.ServeHTTP(w, r) // the handler refuses the request
		return nil
	}
	ctx, end := g.follow(r.Context(), who, s)
	defer end()
	ctx = ipc.WithCaller(ctx, *who)
	if s != nil {
		ctx = context.WithValue(ctx, sessionKey{}, s)
	}
	g.next.ServeHTTP(w, r.WithContext(ctx))
	return nil
}

// identify returns the caller of a request, or nil if the request names none. Wrong credentials
// are an error even where no credentials are needed.
func (g *Gate) identify(d *listener, r *http.Request) (*ipc.Caller, *session, error) {
	if auth := r.Header.Get("Authorization"); auth != "" && !d.pageOnly {
		who, err := g.bearer(r.Context(), auth)
		return who, nil, err
	}
	if id := r.Header.Get("X-Guest-Id"); id != "" && !d.pageOnly {
		who, err := g.guest(id)
		return who, nil, err
	}
	s, err := g.session(r)
	if s == nil || err != nil {
		return nil, nil, err
	}
	who := s.who
	return &who, s, nil
}

func (g *Gate) bearer(ctx context.Context, auth string) (*ipc.Caller, error) {
	scheme, secret, _ := strings.Cut(auth, " ")
	if !strings.EqualFold(scheme, "Bearer") || g.cfg.Tokens == nil {
		return nil, unknown("send Authorization: Bearer TOKEN, with a token of `mulligan token add`")
	}
	who, err := g.cfg.Tokens(ctx, strings.TrimSpace(secret))
	if err != nil {
		return nil, err
	}
	return &who, nil
}

func (g *Gate) guest(id string) (*ipc.Caller, error) {
	if g.cfg.Guests == nil {
		return nil, unknown("guests are not allowed here: send a token of `mulligan token add`")
	}
	who, err := g.cfg.Guests(id)
	if err != nil {
		return nil, err
	}
	return &who, nil
}

func unknown(hint string) error {
	return errs.New(errs.Unauthenticated, opAdmit, "the request does not say who sends it").WithHint("%s", hint)
}

// request is a request that is being answered.
type request struct {
	token ipc.TokenID
	s     *session
	end   context.CancelFunc
}

// follow returns a context that ends when the caller's token or session is revoked or expires.
func (g *Gate) follow(ctx context.Context, who *ipc.Caller, s *session) (context.Context, func()) {
	if who.Grant == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	if until := who.Grant.Until; !until.IsZero() {
		timer := time.AfterFunc(until.Sub(g.cfg.Now()), cancel)
		stop := cancel
		cancel = func() { timer.Stop(); stop() }
	}
	req := &request{token: who.Grant.Token, s: s, end: cancel}
	g.mu.Lock()
	g.live[req] = struct{}{}
	g.mu.Unlock()
	return ctx, func() {
		g.mu.Lock()
		delete(g.live, req)
		g.mu.Unlock()
		cancel()
	}
}

// Revoke ends the requests under way that were admitted by a token, which is no longer valid.
func (g *Gate) Revoke(id ipc.TokenID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cut(func(req *request) bool { return req.token == id })
}

// cut ends the requests under way for which which returns true. The caller must hold g.mu.
func (g *Gate) cut(which func(*request) bool) {
	for req := range g.live {
		if which(req) {
			req.end()
		}
	}
}

// setHeaders sets the headers of every answer. They allow a page only its own scripts, and
// requests to its own origin.
func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "+
		"connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
}
