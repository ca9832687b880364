package remote

import (
	"context"
	"sync"
	"testing"
	"time"

	"filippo.io/age"

	"mulligan/remote/s3test"
	"mulligan/snap"
	"mulligan/testkit"
)

// slow is a bucket with which each object takes longer than the pause between two reports of progress.
type slow struct {
	Bucket
	t *testing.T
}

func (s slow) wait() {
	began := time.Now()
	testkit.Eventually(s.t, "the pause is over", func() bool { return time.Since(began) > 150*time.Millisecond })
}

func (s slow) PutNew(ctx context.Context, name string, data []byte) error {
	s.wait()
	return s.Bucket.PutNew(ctx, name, data)
}

func (s slow) Get(ctx context.Context, name string) ([]byte, error) {
	s.wait()
	return s.Bucket.Get(ctx, name)
}

// TestProgress: whoever waits for a push or a fetch is told how much was sent or fetched.
func TestProgress(t *testing.T) {
	t.Parallel()
	h := newHost(t, s3test.Start(t).Endpoint)
	h.cfg.Bucket = slow{h.bucket, t}
	h.restart(nil)
	h.write(180, 100<<10)
	var mu sync.Mutex
	most := map[string]int64{}
	ctx := snap.WithProgress(t.Context(), func(w snap.Work) {
		mu.Lock()
		defer mu.Unlock()
		most[w.What] = max(most[w.What], w.Done)
	})
	res, err := h.place.Push(ctx, h.store, h.capture("cp-1"))
	must(t, err)
	hist, err := Reader{h.cfg.Bucket, h.cfg.Name, []age.Identity{h.id}}.Read(t.Context())
	must(t, err)
	cp, err := hist.Find("cp-1")
	must(t, err)
	b, err := hist.Fetch(ctx, &cp.Checkpoint, openStore(t), t.TempDir())
	must(t, err)
	b.Discard()
	if most["sent"] == 0 || most["sent"] > res.Bytes || most["fetched"] == 0 || most["fetched"] > res.Bytes {
		t.Errorf("of %d bytes, it was told of %v", res.Bytes, most)
	}
}
