package encoding

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func TestDecoder(t *testing.T) {
	p := binary.AppendUvarint(AppendString(nil, "text"), 1<<32-1)
	d := NewDecoder(p)
	if s := d.Bytes(d.Count()); string(s) != "text" || d.Complete() {
		t.Fatalf("the string reads back as %q, complete %v", s, d.Complete())
	}
	if n := d.Number(); n != 1<<32-1 || !d.Complete() {
		t.Fatalf("the number reads back as %d, complete %v", n, d.Complete())
	}
	for _, bad := range [][]byte{nil, {0x80}, p[:3], binary.AppendUvarint(nil, 1<<32)} {
		d := NewDecoder(bad)
		if n := d.Count(); n != 0 || !d.Failed() || d.Complete() || d.Bytes(1) != nil {
			t.Errorf("%x: count %d, failed %v", bad, n, d.Failed())
		}
	}
	if d := NewDecoder(binary.AppendUvarint(nil, 1<<32)); d.Number() != 0 || !d.Failed() {
		t.Error("a number of 33 bits was read")
	}
}

func TestCompress(t *testing.T) {
	p := bytes.Repeat([]byte("content "), 1000)
	z := Compress([]byte("before"), p)
	if !bytes.HasPrefix(z, []byte("before")) || len(z) > len(p)/10 {
		t.Fatalf("%d bytes take %d", len(p), len(z))
	}
	z = z[len("before"):]
	if back, err := Decompress(z, len(p)); err != nil || !bytes.Equal(back, p) {
		t.Errorf("the frame reads back as %d bytes: %v", len(back), err)
	}
	if _, err := Decompress(z, len(p)-1); err == nil {
		t.Error("a frame of more bytes than announced was decoded")
	}
}
