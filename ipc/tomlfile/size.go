package tomlfile

import (
	"math"

	"github.com/dustin/go-humanize"
)

// SizeHint says how a [Size] is written.
const SizeHint = `write a size like "20GiB", or a number of bytes; 0 is no limit`

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
		if n, err := humanize.ParseBytes(v); err == nil && n <= math.MaxInt64 {
			*s = Size{Bytes: int64(n)}
		}
	}
	return nil
}
