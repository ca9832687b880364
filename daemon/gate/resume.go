package gate

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"mulligan/daemon/loopback"
	"mulligan/durable"
	"mulligan/errs"
	"mulligan/ipc"
)

const (
	resumePath  = "/resume"
	proofHeader = "X-Resume-Proof"
	maxRecord   = 4 << 20 // bytes of the record of sessions
)

// record is the content of Config.File: the sessions, and the port that they are valid at. It has no cookie, but the digests of
// cookies, and for each session the key that its page has. Without the cookie, the key is of no use.
type record struct {
	Port     int             `json:"port"`
	Sessions []sessionRecord `json:"sessions"`
}

type sessionRecord struct {
	Cookie  string    `json:"cookie_sha256"`
	Key     string    `json:"key"`
	UID     int       `json:"uid"`
	GID     int       `json:"gid"`
	Name    string    `json:"name"`
	Host    string    `json:"host"`
	Expires time.Time `json:"expires_at"`
}

// save writes the sessions to Config.File, so that the next process knows them: those that began at the port that links to the page lead to
// now, which is the one that the next process opens. Whoever has another port by then could pass the proof of a page there on. The caller must
// hold g.mu.
func (g *Gate) save() error {
	if g.cfg.File == "" {
		return nil
	}
	var rec record
	if d := g.forPage(); d != nil {
		rec.Port = d.port()
	}
	for key, s := range g.sessions {
		if s.port == rec.Port {
			rec.Sessions = append(rec.Sessions, sessionRecord{
				Cookie: hex.EncodeToString(key[:]), Key: s.key, UID: s.who.UID, GID: s.who.GID, Name: s.who.Name, Host: s.host, Expires: s.expires,
			})
		}
	}
	if len(rec.Sessions) == 0 {
		if err := os.Remove(g.cfg.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return durable.WriteJSON(g.cfg.File, rec)
}

// saved calls save. If it fails, the sessions are good until this process ends. The caller must hold g.mu.
func (g *Gate) saved() {
	if err := g.save(); err != nil {
		g.cfg.Log.Warn("the page's sessions will end with the daemon", "err", err)
	}
}

// Resume continues the sessions of the last process if they were at the page's own port: it opens that port again. If that fails,
// the sessions are over.
func (g *Gate) Resume() error {
	const op = "resume the page's sessions"
	rec, err := g.read()
	if err != nil || len(rec.Sessions) == 0 {
		return errs.Wrap(errs.Failed, op, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l, other, err := loopback.Listen(rec.Port) // at both addresses: whoever listened at the other one would get the code of a link
	if err != nil {
		return errs.Wrap(errs.Unavailable, op, errors.Join(err, g.save())) // there are none now
	}
	g.openPage(l, other)
	g.restore(rec)
	return nil
}

// read returns the record of the last process. It is empty if there is none.
func (g *Gate) read() (rec record, err error) {
	if g.cfg.File == "" {
		return rec, nil
	}
	fi, err := os.Stat(g.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return rec, nil
	}
	if err == nil && fi.Size() > maxRecord {
		err = fmt.Errorf("%s is larger than %d bytes", g.cfg.File, maxRecord)
	}
	if err != nil {
		return rec, err
	}
	err = durable.ReadJSON(g.cfg.File, &rec)
	return rec, err
}

// restore takes the sessions of a record over that have not expired. Each of them waits for its page to resume it. The caller must
// hold g.mu.
func (g *Gate) restore(rec record) {
	for _, r := range rec.Sessions {
		var key digest
		if n, err := hex.Decode(key[:], []byte(r.Cookie)); err != nil || n != len(key) || r.Key == "" || !g.cfg.Now().Before(r.Expires) {
			continue
		}
		s := newSession(ipc.Caller{UID: r.UID, GID: r.GID, Name: r.Name}, r.Host, rec.Port, r.Key, r.Expires)
		s.waiting = true
		g.sessions[key] = s
	}
}

// resume answers the page. GET gives the challenge of this process. POST with the proof that the page has the session's key
// continues the session, with a new cookie: while no daemon ran, another program may have listened at the port and seen the old
// one. Its host name, the cookie and the CSRF token do not make the proof.
func (g *Gate) resume(d *listener, w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	switch r.Method {
	case http.MethodGet:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(g.challenge))
		return nil
	case http.MethodPost:
	default:
		return errs.New(errs.Invalid, "resume the session", "resume a session with POST, not %s", r.Method)
	}
	over := errs.New(errs.Unauthenticated, opAdmit, "the session is over").WithHint("open the page again with: `mulligan ui`")
	c, err := r.Cookie(cookieName)
	if err != nil {
		return over
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	old := digestOf(c.Value)
	s := g.sessions[old]
	if s == nil || !s.validFor(r, g.cfg.Now()) || !hmac.Equal([]byte(r.Header.Get(proofHeader)), []byte(mac(s.key, g.challenge))) {
		return over
	}
	if s.waiting {
		s.waiting = false
		cookie := secret()
		delete(g.sessions, old)
		g.sessions[digestOf(cookie)] = s
		g.saved()
		setCookies(d, w, cookie, s)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// mac returns the HMAC-SHA-256 of a text as text.
func mac(key, text string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// port returns the listener's TCP port.
func (d *listener) port() int {
	if a, ok := d.l.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}
