package remote

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"filippo.io/age"
	"golang.org/x/sync/errgroup"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/remote/s3store"
)

// Config says where a place is, and who writes to it.
type Config struct {
	Bucket     Bucket
	Name       string // of the place
	Writer     string // of this host, at this place
	Host       string // this host's name for people; it is sealed
	Recipients []age.Recipient
	Key        []byte // of the log, as NewKey made it for the place
	Ledger     string // path of the ledger, in a folder that exists
	Now        func() time.Time
	Failpoint  failpoint.Hook // for tests
}

// Place is the place of one app on a remote, as the host sees it that writes to it. Safe for concurrent use.
type Place struct {
	cfg Config
	mu  sync.Mutex
}

// NewPlace returns the place.
func NewPlace(cfg Config) *Place {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Place{cfg: cfg}
}

// entry is an entry of the log, as it is sealed.
type entry struct {
	Place      string      `json:"place"`
	Seq        int64       `json:"seq"`
	Writer     string      `json:"writer"`
	Host       string      `json:"host"`
	At         time.Time   `json:"at"`
	Prev       []byte      `json:"prev"` // hash of the entry before it, as it is in the bucket
	Key        []byte      `json:"key"`  // of the log
	TakeOver   bool        `json:"take_over,omitempty"`
	Packs      []Pack      `json:"packs,omitempty"`
	Removed    *removed    `json:"removed,omitempty"`
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
}

// magic begins each entry of the log. The writer's name follows, a space, what proof returns in hex, and a line feed.
const magic = "mulligan 1 "

// NewKey returns a key for a log.
func NewKey() []byte {
	p := make([]byte, sha256.Size)
	rand.Read(p) // never fails
	return p
}

// KeyName returns a short name of a log's key, which tells nothing of the key.
func KeyName(key []byte) string {
	if len(key) == 0 {
		return ""
	}
	return hex.EncodeToString(sum(append([]byte("key of a log\n"), key...))[:8])
}

// proof returns what only somebody who has the log's key can compute of an entry.
func proof(key []byte, name, writer string, sealed []byte) string {
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "%s\n%s\n", name, writer)
	h.Write(sealed)
	return hex.EncodeToString(h.Sum(nil))
}

// head is the readable part of an entry.
type head struct {
	writer, proof string
	sealed        []byte
}

// cutEntry splits an entry's bytes into its head and what is sealed.
func cutEntry(data []byte) (h head, err error) {
	line, sealed, ok := bytes.Cut(data, []byte("\n"))
	rest, is := strings.CutPrefix(string(line), magic)
	writer, proof, two := strings.Cut(rest, " ")
	if !ok || !is || !two || !isName(writer) || len(proof) != 2*sha256.Size {
		return h, errs.New(errs.Corrupt, "", "it is not an entry of mulligan's log")
	}
	return head{writer, proof, sealed}, nil
}

// errOlder is the error of an entry whose number this host has used already: the ledger is older than the log.
var errOlder = errors.New("the ledger is older than the log")

// append writes the next entry of the log. in says what the ledger is to note beside it.
func (p *Place) append(ctx context.Context, l *ledger, e entry, in intent) error {
	e.Place, e.Seq, e.Prev, e.Writer, e.Host = p.cfg.Name, l.Next, l.Prev, p.cfg.Writer, p.cfg.Host
	e.At, e.Key = p.cfg.Now().UTC(), p.cfg.Key
	for _, k := range l.pending() {
		if !k.Bad {
			e.Packs = append(e.Packs, k.Pack)
		}
	}
	body, err := json.Marshal(e)
	if err != nil {
		return errs.Wrap(errs.Internal, "", err)
	}
	sealed, err := seal(body, p.cfg.Recipients)
	if err != nil {
		return err
	}
	line := magic + p.cfg.Writer + " " + proof(p.cfg.Key, logName(p.cfg.Name, e.Seq), p.cfg.Writer, sealed) + "\n"
	data := append([]byte(line), sealed...)
	in.Seq, in.Sum, in.Size, in.Named = e.Seq, sum(data), int64(len(data)), l.Pending
	if in.Sent != nil {
		in.Sent.Seq, in.Sent.At = e.Seq, e.At
	}
	if err := p.cfg.Failpoint.At("push: intent"); err != nil {
		return err
	}
	if err := l.write(frame{Intent: &in}); err != nil {
		return err
	}
	if err := p.cfg.Failpoint.At("push: entry"); err != nil {
		return err
	}
	err = p.cfg.Bucket.PutNew(ctx, logName(p.cfg.Name, e.Seq), data)
	if errs.KindOf(err) == errs.Conflict {
		return p.meet(ctx, l, e.Seq)
	}
	if err != nil {
		return err
	}
	if err := p.cfg.Failpoint.At("push: wrote"); err != nil {
		return err
	}
	return l.write(frame{Wrote: in.Sum})
}

// errWritten is the error of meet if the entry is one that this host meant to write earlier.
var errWritten = errors.New("an earlier entry was written after all")

// meet looks at the entry that is in the log under the number seq, and notes what follows from it.
func (p *Place) meet(ctx context.Context, l *ledger, seq int64) error {
	data, err := p.cfg.Bucket.Get(ctx, logName(p.cfg.Name, seq))
	if err != nil {
		return err
	}
	if s := sum(data); l.intentOf(s) != nil {
		if err := l.write(frame{Wrote: s}); err != nil {
			return err
		}
		return errWritten
	}
	h, err := cutEntry(data)
	if err != nil {
		return errs.Wrap(errs.Corrupt, logName(p.cfg.Name, seq), err)
	}
	if h.proof != proof(p.cfg.Key, logName(p.cfg.Name, seq), h.writer, h.sealed) {
		return errs.New(errs.Conflict, "", "entry %d of the remote's log was written by somebody who does not have the log's key: not by mulligan on this host, nor on one that cloned the app", seq).
			WithHint("find out who can write to the bucket; `mulligan remote add` with another name begins another log")
	}
	if h.writer == p.cfg.Writer {
		return errOlder
	}
	if err := l.write(frame{Lost: &Lost{h.writer, seq, p.cfg.Now().UTC()}}); err != nil {
		return err
	}
	return l.lost.Err()
}

// Err returns the error of every push to a place that another host has taken over.
func (l *Lost) Err() error {
	return errs.New(errs.Conflict, "", "another host writes to this remote; this host saw that %s and stopped writing", l.Seen.Format("on 2006-01-02 at 15:04 UTC")).
		WithHint("`mulligan push --take-over` makes this host the one that writes, and the other one stop")
}

// settle finds out whether an entry was written of which a crash or a lost answer left this host in doubt.
func (p *Place) settle(ctx context.Context, l *ledger) error {
	if len(l.intents) == 0 {
		return nil
	}
	err := p.meet(ctx, l, l.Next)
	if errs.KindOf(err) == errs.NotFound || errors.Is(err, errWritten) {
		return nil
	}
	return err
}

// skipAhead brings a ledger that is older than the log to the log's end. Nothing that it knows is believed any more. That a checkpoint was sent is believed if
// only other hosts wrote since.
func (p *Place) skipAhead(ctx context.Context, l *ledger) error {
	list, err := p.cfg.Bucket.List(ctx, p.cfg.Name+"/log/", "")
	if err != nil {
		return err
	}
	r := reset{Next: 1}
	if len(list) > 0 {
		last := list[len(list)-1].Name
		n, err := seqOf(p.cfg.Name, last)
		if err != nil {
			return err
		}
		data, err := p.cfg.Bucket.Get(ctx, last)
		if err != nil {
			return err
		}
		r = reset{Next: n + 1, Prev: sum(data)}
	}
	if len(l.Sent) > 0 {
		if r.Doubt, err = p.differs(ctx, l, list); err != nil {
			return err
		}
	}
	return l.write(frame{Reset: &r})
}

// differs reports whether the log is another one than the ledger knows with entries of other hosts, which remove nothing that this host sent: whether the last
// entry that the ledger knows is not in the log, or one of this host's comes after it, which may be a prune.
func (p *Place) differs(ctx context.Context, l *ledger, log []s3store.Object) (bool, error) {
	last := logName(p.cfg.Name, l.Next-1)
	from := slices.IndexFunc(log, func(o s3store.Object) bool { return o.Name >= last })
	if from < 0 || l.Next > 1 && log[from].Name != last {
		return true, nil
	}
	var differs atomic.Bool
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readAtOnce)
	for _, o := range log[from:] {
		g.Go(func() error {
			if differs.Load() {
				return nil
			}
			data, err := p.cfg.Bucket.Get(gctx, o.Name)
			if err != nil {
				return err
			}
			h, err := cutEntry(data)
			if is := o.Name == last; is && !bytes.Equal(sum(data), l.Prev) || !is && (err != nil || h.writer == p.cfg.Writer) {
				differs.Store(true)
			}
			return nil
		})
	}
	err := g.Wait()
	return differs.Load(), err
}

// seqOf returns the number of the log's entry with this name.
func seqOf(place, name string) (n int64, err error) {
	digits := strings.TrimPrefix(name, place+"/log/")
	if _, err = fmt.Sscanf(digits, "%d", &n); err != nil || n < 1 || logName(place, n) != name {
		return 0, errs.New(errs.Corrupt, "", "%.200q is not an entry of mulligan's log", name)
	}
	return n, nil
}

// TakeOver makes this host the one that writes to the place. Everything is sent again by the next push: what the other host left
// is not known here.
func (p *Place) TakeOver(ctx context.Context) (err error) {
	const op = "take the remote over"
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := p.openLedger()
	if err != nil {
		return err
	}
	defer func() { err = errs.Also(err, l.close()) }()
	err = p.settle(ctx, l) // else nobody would know any more what a prune removed
	switch kind := errs.KindOf(err); {
	case err == nil, errors.Is(err, errOlder), kind == errs.Conflict, kind == errs.Corrupt: // whatever entry is there
	default:
		return errs.Wrap(errs.Failed, op, err)
	}
	for range 5 {
		if err = p.skipAhead(ctx, l); err != nil {
			break
		}
		err = p.append(ctx, l, entry{TakeOver: true}, intent{})
		if errs.KindOf(err) != errs.Conflict && !errors.Is(err, errOlder) && !errors.Is(err, errWritten) {
			break // else the other host was a moment faster
		}
	}
	return errs.Wrap(errs.Failed, op, err)
}

// Status is what the ledger knows.
type Status struct {
	Sent     []Sent // oldest first
	Doubtful []Sent // those that may not be whole any more, or not readable for each recipient, and were not sent again yet; oldest first
	Lost     *Lost
	Packs    int
	Bytes    int64 // of the objects that this host stored since it took the place
}

// Status returns what this host knows of the place. It sends no request, and waits for none: a push may be under way.
func (p *Place) Status() (s Status, err error) {
	l, err := p.readLedger()
	if err != nil {
		return s, err
	}
	return l.status(), nil
}
