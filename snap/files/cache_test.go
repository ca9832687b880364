package files

import (
	"testing"

	"mulligan/snap/files/inode"
)

// FuzzCache: no bytes make the decoder of the stat cache stumble.
func FuzzCache(f *testing.F) {
	k := known{size: 3, link: "x"}
	f.Add(k.append(nil, inode.ID{Dev: 1, Ino: 2}))
	f.Fuzz(func(t *testing.T, data []byte) {
		cached, err := decodeCache(data)
		if err != nil && cached != nil {
			t.Fatalf("%v and an error: %v", cached, err)
		}
	})
}
