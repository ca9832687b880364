package tomlfile

import (
	"math"
	"strings"

	"github.com/dustin/go-humanize"
)

// SizeHint says how a [Size] is written.
const SizeHint = `write a size like "20GiB", or a number of bytes; 0 means no limit`

// Size is a number of bytes: in TOML a number, or a text like "20GiB".
type Size struct {
	Bytes int64
	// Bad is set when what stood there is no size: the decoder has no way to
	// hand a kinder error through, so whoever decodes asks for it.
	Bad bool
}

// UnmarshalTOML implements toml.Unmarshaler.
func (s *Size) UnmarshalTOML(v any) error {
	*s = Size{Bad: true}
	switch v := v.(type) {
	case int64:
		*s = Size{Bytes: v, Bad: v < 0}
	case string:
		n, ok := ParseSize(v)
		*s = Size{Bytes: n, Bad: !ok}
	}
	return nil
}

// ParseSize reads a size like "20GiB", or a number of bytes. A comma is none of
// it: some divide thousands by it, and others fractions.
func ParseSize(text string) (bytes int64, ok bool) {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 || strings.Contains(text, ",") {
		return 0, false
	}
	return int64(n), true
}
