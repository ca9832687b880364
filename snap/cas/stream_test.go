package cas

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"mulligan/errs"
)

func TestStream(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	zeros := make([]byte, 8192)
	contents := map[string][]byte{
		"empty": {}, "short": []byte("short"), "one chunk": noise(t, 4096), "more": noise(t, 4096*3+17),
		"hole":  append(append(noise(t, 4096), zeros...), noise(t, 100)...),
		"zeros": zeros,
	}
	for name, p := range contents {
		t.Run(name, func(t *testing.T) {
			b := s.Begin()
			h, n, err := s.PutReader(b, iotest.OneByteReader(bytes.NewReader(p)), 4096)
			noErr(t, err)
			if n != int64(len(p)) {
				t.Fatalf("%d bytes were stored, want %d", n, len(p))
			}
			noErr(t, b.Commit(Root{Name: name, Hash: h}))
			r, err := s.OpenStream(h)
			noErr(t, err)
			noErr(t, iotest.TestReader(r, p))
		})
	}
	h := must(s.Root("hole")).Hash
	if r := must(s.OpenStream(h)); !r.Refs[1].IsZero() || !r.Refs[2].IsZero() || r.Size != 4096*3+100 || r.Chunk != 4096 {
		t.Errorf("a stream with a hole has refs %v", r.Refs)
	}
}

func TestStreamErrors(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	b := s.Begin()
	defer b.Discard()
	broken := errors.New("broken")
	if _, _, err := s.PutReader(b, iotest.ErrReader(broken), 0); !errors.Is(err, broken) {
		t.Errorf("a failing reader gives %v", err)
	}
	_, _, err := s.PutReader(b, bytes.NewReader(nil), MaxObject+1)
	wantKind(t, err, errs.Invalid)
	_, err = b.Stream([]Hash{{}}, 100, 10)
	wantKind(t, err, errs.Invalid)
	n := must(b.Node([]byte("not a stream"), nil))
	_, err = s.OpenStream(n)
	wantKind(t, err, errs.Invalid)
}

var _ io.ReaderAt = (*Reader)(nil)
