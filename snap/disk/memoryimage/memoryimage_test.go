package memoryimage

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/testkit/sysfault"
)

// image is a memory image with this header and stream. spare is how many zeros the header ends with.
func image(definition, cookie string, spare int, stream []byte) []byte {
	data := append([]byte(definition), 0)
	at := 0
	if cookie != "" {
		at = len(data)
		data = append(append(data, cookie...), 0)
	}
	data = append(data, make([]byte, spare)...)
	out := []byte(magic)
	for i := range 19 {
		n := map[int]int{atVersion: version, atDataLength: len(data), atRunning: 1, atCookie: at}[i]
		out = binary.NativeEndian.AppendUint32(out, uint32(n))
	}
	return append(append(out, data...), stream...)
}

func write(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "memory")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCopy gives images other definitions, shorter and longer than theirs: the rest stays, and the stream keeps its place in a block.
func TestCopy(t *testing.T) {
	t.Parallel()
	stream := bytes.Repeat([]byte("what QEMU wrote "), 5000)
	for _, cookie := range []string{"", "<cookie/>"} {
		for _, spare := range []int{0, 1, 5000} {
			for _, next := range []string{"<domain/>", strings.Repeat("long ", 100), strings.Repeat("longer ", 3000)} {
				from := write(t, image("<domain>was</domain>", cookie, spare, stream))
				to := from + ".fork"
				err := Copy(t.Context(), from, to, func(was string) (string, error) {
					if was != "<domain>was</domain>" {
						t.Errorf("it reads %q", was)
					}
					return next, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				data, err := os.ReadFile(to)
				if err != nil {
					t.Fatal(err)
				}
				h, err := Read(bytes.NewReader(data))
				if err != nil {
					t.Fatal(err)
				}
				if h.Definition != next || string(h.cookie) != cookie || h.number(atRunning) != 1 || h.number(atVersion) != version {
					t.Errorf("the copy has %.50q and %q", h.Definition, h.cookie)
				}
				old, err := Read(bytes.NewReader(image("<domain>was</domain>", cookie, spare, nil)))
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(data[h.end:], stream) || (h.end-old.end)%block != 0 || h.end < old.end {
					t.Errorf("the stream began at %d, and begins at %d", old.end, h.end)
				}
				if err := Copy(t.Context(), from, to, func(string) (string, error) { return next, nil }); !os.IsExist(err) {
					t.Errorf("a file is overwritten: %v", err)
				}
			}
		}
	}
}

// TestUnknown refuses images that it cannot be sure of.
func TestUnknown(t *testing.T) {
	t.Parallel()
	good := image("<domain/>", "<cookie/>", 10, []byte("stream"))
	set := func(i int, v uint32) []byte {
		out := bytes.Clone(good)
		binary.NativeEndian.PutUint32(out[len(magic)+4*i:], v)
		return out
	}
	for what, data := range map[string][]byte{
		"nothing": nil, "no magic": append([]byte("x"), good[1:]...), "part of the header": good[:50], "part of the data": good[:headerSize+5],
		"another version": set(atVersion, 3), "another format": set(atFormat, 6), "a huge header": set(atDataLength, 1<<31),
		"a cookie outside": set(atCookie, 1<<20), "a definition without an end": set(atCookie, 3), "no definition": image("", "x", 0, nil),
	} {
		if h, err := Read(bytes.NewReader(data)); errs.KindOf(err) != errs.Unsupported {
			t.Errorf("%s: %+v, %v", what, h, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(image("<domain/>", "<cookie/>", 3, []byte("stream")))
	f.Add(image("<domain/>", "", 0, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		if h.end > int64(len(data)) || h.Definition == "" || strings.Contains(h.Definition, "\x00") {
			t.Fatalf("it reads %+v", h)
		}
		next := h.encode("another " + h.Definition)
		again, err := Read(bytes.NewReader(next))
		if err != nil {
			t.Fatal(err)
		}
		if again.Definition != "another "+h.Definition || !bytes.Equal(again.cookie, h.cookie) || again.end != int64(len(next)) {
			t.Fatalf("%+v became %+v", h, again)
		}
	})
}

// TestCopyIsSynced: the memory of a guest is on the disk when its copy is there.
func TestCopyIsSynced(t *testing.T) {
	calls := sysfault.Trace(t, func(dir string) {
		if err := os.WriteFile(dir+"/from", image("<domain/>", "", 100, bytes.Repeat([]byte("memory"), 10_000)), 0o600); err != nil {
			t.Fatal(err)
		}
	}, func(dir string) error {
		return Copy(context.Background(), dir+"/from", dir+"/to", func(d string) (string, error) { return d, nil })
	})
	if len(calls) == 0 || !slices.Contains(calls, "write to") {
		t.Errorf("it did %q", calls)
	}
	for _, lost := range sysfault.Unsynced(calls) {
		t.Error(lost)
	}
}
