package gate

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

const (
	loginPath  = "/login"
	cookieName = "mulligan_session"
	csrfCookie = "mulligan_csrf"
	csrfHeader = "X-CSRF-Token"

	codeLife    = 2 * time.Minute
	sessionLife = 12 * time.Hour
	maxPerUser  = 16 // of sessions and of codes; the oldest is removed
)

// digest is the SHA-256 of a secret, which itself is not kept.
type digest [sha256.Size]byte

// invitation is the meaning of a one-time code.
type invitation struct {
	who     ipc.Caller
	host    string // the name in its link
	app     string // the slug of the app that the page opens on; "" is the first of the list
	expires time.Time
}

// session is a browser that has logged in.
type session struct {
	who     ipc.Caller
	host    string
	port    int // of the listener at which its link was opened
	csrf    string
	key     string // with which its page resumes it after a restart of the daemon
	expires time.Time
	waiting bool // for its page to resume it; Gate.mu guards it
}

// newSession returns a session of a user that began at a port. Its CSRF token follows from the key.
func newSession(who ipc.Caller, host string, port int, key string, expires time.Time) *session {
	who.Via, who.Grant = "page", &ipc.Grant{Scopes: []ipc.Scope{ipc.ScopeRead, ipc.ScopeWrite}, Until: expires}
	return &session{who: who, host: host, port: port, csrf: mac(key, "csrf"), key: key, expires: expires}
}

// validFor reports whether the session is valid at a time for requests to the host of r.
func (s *session) validFor(r *http.Request, now time.Time) bool {
	return now.Before(s.expires) && s.host == hostName(r.Host)
}

type sessionKey struct{}

// secret returns 256 random bits as text.
func secret() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func digestOf(secret string) digest { return sha256.Sum256([]byte(secret)) }

// Invite returns a link that logs a browser in as who, once. The page opens on the app with the slug app, or on the first of the
// list if app is "". Invite opens a listener for the page if there is none.
func (g *Gate) Invite(who ipc.Caller, app string) (ipc.UILink, error) {
	const op = "open the page"
	var label [8]byte
	rand.Read(label[:])
	code, now := secret(), g.cfg.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	d, err := g.pageListener()
	if err != nil {
		return ipc.UILink{}, errs.Wrap(errs.Unavailable, op, err)
	}
	inv := invitation{who: who, host: d.name("m" + hex.EncodeToString(label[:])), app: app, expires: now.Add(codeLife)}
	g.sweep(now)
	trim(g.codes, func(i invitation) (bool, time.Time) { return i.who.UID == who.UID, i.expires })
	g.codes[digestOf(code)] = inv
	return ipc.UILink{URL: d.url(inv.host) + loginPath + "?code=" + code, ExpiresAt: inv.expires.UTC()}, nil
}

// trim removes the oldest entries of those that mine selects, so that at most maxPerUser remain
// after one more is added.
func trim[T any](all map[digest]T, mine func(T) (bool, time.Time)) {
	var count int
	var oldest digest
	var first time.Time
	for key, v := range all {
		ok, at := mine(v)
		if !ok {
			continue
		}
		if count++; count == 1 || at.Before(first) {
			oldest, first = key, at
		}
	}
	if count >= maxPerUser {
		delete(all, oldest)
	}
}

// sweep removes expired sessions and invitations. The caller must hold g.mu.
func (g *Gate) sweep(now time.Time) {
	maps.DeleteFunc(g.codes, func(_ digest, inv invitation) bool { return !now.Before(inv.expires) })
	maps.DeleteFunc(g.sessions, func(_ digest, s *session) bool { return !now.Before(s.expires) })
}

// login exchanges a code for a cookie. The answer is a page that navigates to / by itself, because after a redirect from
// another site a browser does not send a Strict cookie.
func (g *Gate) login(d *listener, w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		return errs.New(errs.Invalid, "log in", "open a link with GET, not %s", r.Method)
	}
	cookie, s, app := g.exchange(d, r)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if s == nil {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, "<!doctype html><title>mulligan</title><p>This link has been used, or has expired. Get a new one with <code>mulligan ui</code>\n")
		return nil
	}
	setCookies(d, w, cookie, s)
	start := "/"
	if app != "" {
		start = "/#/app/" + html.EscapeString(url.PathEscape(app)) // the page reads it
	}
	_, _ = fmt.Fprintf(w, "<!doctype html><title>mulligan</title><meta http-equiv=\"refresh\" content=\"0;url=%[1]s\"><p><a href=\"%[1]s\">mulligan</a>\n", start)
	return nil
}

// setCookies gives a browser its session.
func setCookies(d *listener, w http.ResponseWriter, cookie string, s *session) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: cookie, Path: "/", Expires: s.expires, HttpOnly: true,
		SameSite: http.SameSiteStrictMode, Secure: d.tls,
	})
	http.SetCookie(w, &http.Cookie{ // the page's scripts read it and send it as X-CSRF-Token
		Name: csrfCookie, Value: s.csrf, Path: "/", Expires: s.expires, SameSite: http.SameSiteStrictMode, Secure: d.tls,
	})
}

// exchange takes the request's code and returns a new session for it with the app of the link, or nil if the code is not
// valid.
func (g *Gate) exchange(d *listener, r *http.Request) (cookie string, s *session, app string) {
	key, now := digestOf(r.URL.Query().Get("code")), g.cfg.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sweep(now)
	inv, ok := g.codes[key]
	if !ok || inv.host != hostName(r.Host) {
		return "", nil, ""
	}
	delete(g.codes, key)
	trim(g.sessions, func(s *session) (bool, time.Time) { return s.who.UID == inv.who.UID, s.expires })
	cookie = secret()
	s = newSession(ipc.Caller{UID: inv.who.UID, GID: inv.who.GID, Name: inv.who.Name}, inv.host, d.port(), secret(), now.Add(sessionLife))
	g.sessions[digestOf(cookie)] = s
	g.saved()
	return cookie, s, inv.app
}

// session returns the session of the request's cookie; nil if there is none. A request that changes something must also have
// the session's CSRF token.
func (g *Gate) session(r *http.Request) (*session, error) {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return nil, nil
	}
	g.mu.Lock()
	s := g.sessions[digestOf(c.Value)]
	valid := s != nil && s.validFor(r, g.cfg.Now())
	waits := valid && s.waiting
	g.mu.Unlock()
	if !valid || waits {
		if !isAPI(r.URL.Path) {
			return nil, nil // the page's files need no session; the page reports that the session has ended
		}
		if waits {
			return nil, errs.New(errs.Unauthenticated, opAdmit, "the daemon was started anew, and the page has not resumed its session").
				WithHint("open the page again with: `mulligan ui`")
		}
		return nil, errs.New(errs.Unauthenticated, opAdmit, "the session is over").WithHint("open the page again with: `mulligan ui`")
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return s, nil
	}
	if subtle.ConstantTimeCompare([]byte(r.Header.Get(csrfHeader)), []byte(s.csrf)) != 1 {
		return nil, errs.New(errs.Denied, opAdmit, "%s does not match the session", csrfHeader).
			WithHint("send the csrf of GET /api/session as %s", csrfHeader)
	}
	return s, nil
}

// SessionOf returns what the page may know about the session of a request; false if the request
// has none.
func SessionOf(ctx context.Context) (ipc.Session, bool) {
	s, ok := ctx.Value(sessionKey{}).(*session)
	if !ok {
		return ipc.Session{}, false
	}
	return ipc.Session{UID: s.who.UID, CSRF: s.csrf, Key: s.key, ExpiresAt: s.expires.UTC()}, true
}

// End ends the session of a request. If it returns an error, the session is over, but the next process may take it for valid.
func (g *Gate) End(ctx context.Context) error {
	s, ok := ctx.Value(sessionKey{}).(*session)
	if !ok {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.sessions, func(_ digest, other *session) bool { return other == s })
	g.cut(func(req *request) bool { return req.s == s })
	return errs.Wrap(errs.Failed, "end the session", g.save())
}
