package cas

import (
	"bytes"
	"fmt"
	"testing"
)

func BenchmarkBlob(b *testing.B) {
	for _, size := range []int{2 << 10, 9 << 10, 1 << 20} {
		for _, kind := range []string{"text", "noise"} {
			b.Run(fmt.Sprintf("%s/%d", kind, size), func(b *testing.B) {
				s := open(b, b.TempDir(), Options{})
				p := bytes.Repeat([]byte("func (s *Store) Get(h Hash) ([]byte, error) {\n"), size/45)[:size/45*45]
				if kind == "noise" {
					p = noise(b, size)
				}
				b.SetBytes(int64(len(p)))
				batch := s.Begin()
				i := 0
				for b.Loop() {
					i++
					copy(p, fmt.Sprintf("%020d", i))
					must(batch.Blob(p))
				}
				noErr(b, batch.Commit())
			})
		}
	}
}

func BenchmarkBlobThere(b *testing.B) {
	s := open(b, b.TempDir(), Options{})
	batch := s.Begin()
	defer batch.Discard()
	p := noise(b, 9<<10)
	for b.Loop() {
		must(batch.Blob(p))
	}
}

func BenchmarkGet(b *testing.B) {
	for _, size := range []int{9 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := open(b, b.TempDir(), Options{})
			batch := s.Begin()
			defer batch.Discard()
			h := must(batch.Blob(noise(b, size)))
			b.SetBytes(int64(size))
			for b.Loop() {
				must(s.Get(h))
			}
		})
	}
}

func BenchmarkCommit(b *testing.B) {
	s := open(b, b.TempDir(), Options{})
	for b.Loop() {
		batch := s.Begin()
		n := must(batch.Node(nil, []Hash{must(batch.Blob(noise(b, 4<<10)))}))
		noErr(b, batch.Commit(Root{Name: "r", Hash: n}))
	}
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	s := open(b, dir, Options{SegmentBytes: 8 << 20})
	batch := s.Begin()
	var refs []Hash
	for range 100_000 {
		refs = append(refs, must(batch.Blob(noise(b, 512))))
	}
	noErr(b, batch.Commit(Root{Name: "r", Hash: must(batch.Node(nil, refs))}))
	noErr(b, s.Close())
	for b.Loop() {
		noErr(b, must(Open(dir, Options{})).Close())
	}
}
