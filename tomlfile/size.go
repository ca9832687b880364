package tomlfile

import (
	"math"
	"strings"

	"github.com/dustin/go-humanize"
)

// SizeHint is a hint that says how to write a [Size].
const SizeHint = `write a size like "20GiB", or a number of bytes; 0 means no limit`

// Size is a number of bytes. In TOML it is a number, or a string like "20GiB".
type Size struct {
	Bytes int64
	// Bad is set if the value in the file is not a size. The caller of Decode must check it. UnmarshalTOML returns no error,
	// because the decoder would not pass a helpful one on.
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

// ParseSize parses a size like "20GiB", or a number of bytes. A comma is not allowed: it separates thousands in some countries,
// and fractions in others.
func ParseSize(text string) (bytes int64, ok bool) {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 || strings.Contains(text, ",") {
		return 0, false
	}
	return int64(n), true
}
