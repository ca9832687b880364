package output

import (
	"strings"
	"testing"
)

func TestLine(t *testing.T) {
	var b strings.Builder
	l := NewLine(&b, func() int { return 12 })
	l.Refresh("nothing yet")
	l.Show("files read: 12")
	l.Clear()
	l.Clear()
	l.Refresh("nothing more")
	l.Show("bad \x1b name")
	if got, want := b.String(), "\r\x1b[K  files re…"+"\r\x1b[K"+"\r\x1b[K  bad \\x1b…"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

// What is printed comes where the line was.
func TestLineGoesBeforeOutput(t *testing.T) {
	var b strings.Builder
	l := NewLine(&b, func() int { return 0 })
	w := NewWriter(&b)
	w.Before = l.Clear
	l.Show("files read: 12")
	w.Write([]byte("done\n"))
	if got, want := b.String(), "\r\x1b[K  files read: 12\r\x1b[Kdone\n"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}
