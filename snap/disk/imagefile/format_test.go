package imagefile

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"
)

func TestExtents(t *testing.T) {
	a := []Extent{{0, 2}, {4, 6}, {10, 20}}
	b := []Extent{{1, 5}, {12, 14}, {20, 22}}
	if got, want := Union(a, b), []Extent{{0, 6}, {10, 22}}; !reflect.DeepEqual(got, want) {
		t.Errorf("union is %v, want %v", got, want)
	}
	if got, want := Without(a, b), []Extent{{0, 1}, {5, 6}, {10, 12}, {14, 20}}; !reflect.DeepEqual(got, want) {
		t.Errorf("without is %v, want %v", got, want)
	}
	if got := Total(a); got != 14 {
		t.Errorf("total is %d", got)
	}
}

// qcow2 makes the header of an image of version 3 with an L1 table and an L2 table.
func qcow2(backing string) []byte {
	b := make([]byte, 4<<16)
	be := binary.BigEndian
	be.PutUint32(b, qcow2Magic)
	be.PutUint32(b[4:], 3)
	be.PutUint64(b[8:], 512)
	be.PutUint32(b[16:], uint32(len(backing)))
	be.PutUint32(b[20:], 16)
	be.PutUint64(b[24:], 1<<20)
	be.PutUint32(b[36:], 1)
	be.PutUint64(b[40:], 1<<16)
	be.PutUint32(b[100:], 104)
	be.PutUint32(b[104:], extBackingFmt)
	be.PutUint32(b[108:], 5)
	copy(b[112:], "qcow2")
	copy(b[512:], backing)
	be.PutUint64(b[1<<16:], 2<<16|1<<63)
	be.PutUint64(b[2<<16+8:], 3<<16|1<<63) // the second cluster
	be.PutUint64(b[2<<16+16:], 1)          // the third is all zeros
	return b
}

func TestReadImage(t *testing.T) {
	r := bytes.NewReader(qcow2("/below"))
	img, err := readImage(r)
	if err != nil || img.Size != 1<<20 || img.Cluster != 1<<16 || img.Backing != "/below" || img.BackingFmt != "qcow2" {
		t.Fatalf("%+v, %v", img, err)
	}
	list, data, tables, err := img.allocated(r)
	if err != nil || tables != 1 || !reflect.DeepEqual(list, []Extent{{1 << 16, 3 << 16}}) || !reflect.DeepEqual(data, []Extent{{1 << 16, 2 << 16}}) {
		t.Errorf("%v, %v, %d, %v", list, data, tables, err)
	}
	if empty, err := img.Empty(r); empty || err != nil {
		t.Errorf("%t, %v", empty, err)
	}
}

// Whatever the bytes, reading them ends, with an answer or an error.
func FuzzReadImage(f *testing.F) {
	f.Add(qcow2("/below")[:1024])
	f.Add([]byte("QFI\xfb"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		img, err := readImage(r)
		if err != nil {
			return
		}
		if _, err := img.Empty(r); err != nil {
			return
		}
		list, held, _, err := img.allocated(r)
		if err == nil && Total(held) > Total(list) {
			t.Errorf("more data than allocated: %v, %v", held, list)
		}
	})
}
