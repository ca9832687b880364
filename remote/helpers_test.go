package remote

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/remote/identity"
	"mulligan/remote/s3store"
	"mulligan/remote/s3test"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

// host is a host with a content store, that writes to a place.
type host struct {
	t       testing.TB
	store   *cas.Store
	bucket  *s3store.Store
	cfg     Config
	place   *Place
	id      *age.X25519Identity
	content map[string][]byte    // of the present state
	tops    map[string]snap.Hash // of what was captured
	// variants are contents that change gives.
	variants map[string][]byte
}

// lateLog is a bucket. While hold is set, a request to store an entry of the log fails, and the entry is stored when land is called.
type lateLog struct {
	Bucket
	hold bool
	land func() error
}

func (b *lateLog) PutNew(ctx context.Context, name string, data []byte) error {
	if !b.hold || !strings.Contains(name, "/log/") {
		return b.Bucket.PutNew(ctx, name, data)
	}
	data = bytes.Clone(data)
	b.land = func() error { return b.Bucket.PutNew(context.WithoutCancel(ctx), name, data) }
	return errs.New(errs.Unavailable, "", "the answer is lost")
}

// release has the entry stored now, or else when the host is about to write the next one.
func (b *lateLog) release(h *host, late bool) {
	h.t.Helper()
	b.hold = false
	if !late {
		must(h.t, b.land())
		return
	}
	var once sync.Once
	h.restart(func(at string) (err error) {
		if at == "push: intent" {
			once.Do(func() { err = b.land() })
		}
		return err
	})
}

// connect returns a store in the server's bucket. endpoint may be that of a proxy.
func connect(t testing.TB, endpoint string) *s3store.Store {
	t.Helper()
	return connectAs(t, endpoint, keys(s3test.Key, s3test.Secret))
}

func connectAs(t testing.TB, endpoint string, who *credentials.Credentials) *s3store.Store {
	t.Helper()
	s, err := s3store.Open(s3store.Config{
		Bucket: s3test.Bucket, Prefix: "some/prefix", Endpoint: endpoint, Region: "us-east-1", Tries: 3, Pause: 1e6,
		Credentials: who,
	})
	must(t, err)
	return s
}

func newHost(t testing.TB, endpoint string) *host {
	t.Helper()
	return newHostAt(t, connect(t, endpoint))
}

func newHostAt(t testing.TB, bucket *s3store.Store) *host {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	must(t, err)
	h := &host{t: t, bucket: bucket, id: id, content: map[string][]byte{}, tops: map[string]snap.Hash{}, variants: map[string][]byte{}}
	h.cfg = Config{Bucket: h.bucket, Name: NewName(), Writer: NewName(), Host: "first-host", Recipients: []age.Recipient{id.Recipient()}, Key: NewKey(),
		Ledger: filepath.Join(t.TempDir(), "ledger")}
	h.store = openStore(t)
	h.place = NewPlace(h.cfg)
	return h
}

func openStore(t testing.TB) *cas.Store {
	t.Helper()
	s, err := cas.Open(t.TempDir(), cas.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// other returns another host at the same place.
func (h *host) other() *host {
	o := *h
	o.cfg.Writer, o.cfg.Host, o.cfg.Ledger = NewName(), "second-host", filepath.Join(h.t.TempDir(), "ledger")
	o.place = NewPlace(o.cfg)
	return &o
}

// restart stands for a crash of the host's daemon. The steps of the next one call hook.
func (h *host) restart(hook failpoint.Hook) {
	h.cfg.Failpoint = hook
	h.place = NewPlace(h.cfg)
}

// write changes n things of some bytes each.
func (h *host) write(n, size int) {
	for range n {
		h.content[fmt.Sprintf("file-%04d", len(h.content))] = testkit.Bytes(h.t, size, len(h.content))
	}
}

// change gives n things another content, of few.
func (h *host) change(n, size int, random *rand.Rand) {
	for range n {
		i := random.IntN(len(h.content))
		name := fmt.Sprintf("file-%04d", i)
		variant := fmt.Sprintf("%s as %d", name, random.IntN(3))
		if h.variants[variant] == nil {
			h.variants[variant] = testkit.Bytes(h.t, size, variant)
		}
		h.content[name] = h.variants[variant]
	}
}

// replace gives the first n things other contents.
func (h *host) replace(n, size int) {
	for i := range n {
		name := fmt.Sprintf("file-%04d", i)
		h.content[name] = testkit.Bytes(h.t, size, name, "replaced")
	}
}

// lose deletes a checkpoint here.
func (h *host) lose(id string) {
	h.t.Helper()
	must(h.t, h.store.Delete("test/"+id))
}

// capture stores the present state, under a node for each of 16 folders, and returns it as a checkpoint.
func (h *host) capture(id string) Checkpoint {
	h.t.Helper()
	b := h.store.Begin()
	defer b.Discard()
	folders := map[byte][]snap.Hash{}
	names := map[byte]string{}
	for i := range len(h.content) {
		name := fmt.Sprintf("file-%04d", i)
		blob, err := b.Blob(h.content[name])
		must(h.t, err)
		k := blob[0] % 16
		folders[k] = append(folders[k], blob)
		names[k] += name + "\n"
	}
	var top []snap.Hash
	for k := range byte(16) {
		n, err := b.Node([]byte(fmt.Sprintf("folder %d\n%s", k, names[k])), folders[k])
		must(h.t, err)
		top = append(top, n)
	}
	root, err := b.Node([]byte("top of "+id), top)
	must(h.t, err)
	must(h.t, b.Commit(cas.Root{Name: "test/" + id, Hash: root}))
	h.tops[id] = root
	return h.recorded(id)
}

// recorded returns a checkpoint that was captured.
func (h *host) recorded(id string) Checkpoint {
	h.t.Helper()
	cp := Checkpoint{ID: id, About: []byte("the checkpoint " + id), App: []byte("the secret app")}
	cp.SetParts([]Part{{snap.Files, snap.Portable{Driver: "files", Object: h.tops[id], Meta: []byte("meta of " + id)}}})
	return cp
}

// moved returns the host at a new, empty place.
func (h *host) moved(s *s3test.Server) *host {
	o := *h
	o.bucket = connect(h.t, s.Endpoint)
	o.cfg.Bucket, o.cfg.Name, o.cfg.Ledger = o.bucket, NewName(), filepath.Join(h.t.TempDir(), "ledger")
	o.place = NewPlace(o.cfg)
	return &o
}

func keys(id, secret string) *credentials.Credentials { return credentials.NewStaticV4(id, secret, "") }

// hash returns the name of a blob in the content store.
func (h *host) hash(p []byte) snap.Hash {
	h.t.Helper()
	b := h.store.Begin()
	defer b.Discard()
	sum, err := b.Blob(p)
	must(h.t, err)
	return sum
}

func mustIdentities(t *testing.T) []age.Identity {
	t.Helper()
	text, _, err := identity.New()
	must(t, err)
	ids, err := identity.Parse(text)
	must(t, err)
	return ids
}

// push captures and pushes the present state.
func (h *host) push(id string) Pushed {
	h.t.Helper()
	res, err := h.place.Push(h.t.Context(), h.store, h.capture(id))
	must(h.t, err)
	return res
}

func (h *host) read() (*History, error) {
	return Reader{h.bucket, h.cfg.Name, []age.Identity{h.id}}.Read(h.t.Context())
}

// whole reads the place as another host would, and checks that these checkpoints are on it, in this order, each whole.
func (h *host) whole(ids ...string) {
	h.t.Helper()
	hist, err := h.read()
	must(h.t, err)
	var have []string
	for _, c := range hist.Checkpoints {
		have = append(have, c.ID)
	}
	if fmt.Sprint(have) != fmt.Sprint(ids) || len(hist.Problems) > 0 {
		h.t.Fatalf("the log has %v, not %v; problems: %v", have, ids, hist.Problems)
	}
	for _, id := range ids {
		must(h.t, h.fetch(hist, id))
	}
}

// fetch fetches a checkpoint into an empty store, and checks it against what the first host captured.
func (h *host) fetch(hist *History, id string) error {
	cp, err := hist.Find(id)
	if err != nil {
		return err
	}
	into, err := cas.Open(h.t.TempDir(), cas.Options{})
	must(h.t, err)
	defer into.Close()
	b, err := hist.Fetch(context.WithoutCancel(h.t.Context()), &cp.Checkpoint, into, h.t.TempDir())
	if err != nil {
		return err
	}
	defer b.Discard()
	parts, err := cp.Snapshots()
	must(h.t, err)
	if string(cp.About) != "the checkpoint "+id || string(cp.App) != "the secret app" || len(parts) != 1 ||
		parts[0].Portable.Object != h.tops[id] || string(parts[0].Portable.Meta) != "meta of "+id || parts[0].Layer != snap.Files {
		h.t.Fatalf("%s is described as %+v", id, cp)
	}
	must(h.t, b.Commit(cas.Root{Name: "x", Hash: parts[0].Portable.Object}))
	must(h.t, into.Check(h.t.Context(), "x", true))
	return nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
