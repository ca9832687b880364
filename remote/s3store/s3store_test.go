package s3store_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"mulligan/errs"
	"mulligan/remote/s3store"
	"mulligan/remote/s3test"
)

func open(t *testing.T, s *s3test.Server, prefix string) *s3store.Store {
	t.Helper()
	b, err := s3store.Open(s3store.Config{Bucket: s3test.Bucket, Prefix: prefix, Endpoint: s.Endpoint, Region: "us-east-1",
		Credentials: credentials.NewStaticV4(s3test.Key, s3test.Secret, "")})
	must(t, err)
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An object is stored once: who puts other content under its name gets a conflict, and who puts the same is told that it is there.
func TestObjects(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	b, other := open(t, server, "some/prefix"), open(t, server, "other")
	must(t, other.PutNew(t.Context(), "a/1", []byte("of another")))
	for _, name := range []string{"a/1", "a/2", "a/3", "b/1", "top"} {
		must(t, b.PutNew(t.Context(), name, []byte("content of "+name)))
	}
	must(t, b.PutNew(t.Context(), "a/1", []byte("content of a/1")))
	if err := b.PutNew(t.Context(), "a/1", []byte("content of a/2")); errs.KindOf(err) != errs.Conflict {
		t.Errorf("an object is put again: %v", err)
	}
	data, err := b.Get(t.Context(), "a/1")
	if err != nil || string(data) != "content of a/1" {
		t.Errorf("get: %q, %v", data, err)
	}
	if _, err := b.Get(t.Context(), "a/4"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("get of no object: %v", err)
	}
	list, err := b.List(t.Context(), "a/", "a/1")
	if want := []s3store.Object{{Name: "a/2", Size: 14}, {Name: "a/3", Size: 14}}; err != nil || !slices.Equal(list, want) {
		t.Errorf("list: %v, %v", list, err)
	}
	folders, err := b.Folders(t.Context())
	if err != nil || !slices.Equal(folders, []string{"a", "b"}) {
		t.Errorf("folders: %v, %v", folders, err)
	}
	if o, err := b.Stat(t.Context(), "b/1"); err != nil || o.Size != 14 {
		t.Errorf("stat: %v, %v", o, err)
	}
	for range 2 {
		must(t, b.Delete(t.Context(), "b/1"))
	}
	if _, err := b.Stat(t.Context(), "b/1"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("stat of no object: %v", err)
	}
	// Received: a/1 three times, for the two puts of what was there and for the get.
	if u := b.Usage(); u.Sent != 5*14 || u.Received != 3*14 || u.Requests < 14 {
		t.Errorf("usage: %+v", u)
	}
}

// Of many that put different contents under one name at once, one succeeds.
func TestRace(t *testing.T) {
	t.Parallel()
	b := open(t, s3test.Start(t), "")
	var won atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			switch err := b.PutNew(t.Context(), "log/1", fmt.Appendf(nil, "entry of %d", i)); errs.KindOf(err) {
			case "":
				won.Add(1)
			case errs.Conflict:
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 16 wrote the entry", won.Load())
	}
}
