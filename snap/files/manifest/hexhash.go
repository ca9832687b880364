package manifest

import (
	"encoding/hex"
	"fmt"

	"mulligan/snap"
)

// HexHash is a hash in hex.
type HexHash snap.Hash

func (d HexHash) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(d[:])), nil }

func (d *HexHash) UnmarshalText(b []byte) error {
	if hex.DecodedLen(len(b)) != len(d) {
		return fmt.Errorf("a hash of %d digits", len(b))
	}
	_, err := hex.Decode(d[:], b)
	return err
}
