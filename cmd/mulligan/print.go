package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"mulligan/errs"
)

// printJSON prints v as the API writes it, indented for a terminal.
func (c *cli) printJSON(v any) error {
	enc := json.NewEncoder(c.out)
	if c.terminal {
		enc.SetIndent("", "  ")
	}
	return errs.Wrap(errs.Failed, "print", enc.Encode(v))
}

// table prints rows: aligned and under header on a terminal, else a line each,
// the fields separated by tabs. The fields hold no control characters.
func (c *cli) table(header []string, rows [][]string) {
	if !c.terminal {
		for _, row := range rows {
			fmt.Fprintln(c.out, strings.Join(row, "\t"))
		}
		return
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // c.out remembers its error
}

// fields prints names and values, a pair a line. On a terminal those without a
// value are left out.
func (c *cli) fields(pairs [][2]string) {
	if !c.terminal {
		for _, p := range pairs {
			fmt.Fprintf(c.out, "%s\t%s\n", p[0], p[1])
		}
		return
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	for _, p := range pairs {
		if p[1] != "-" {
			fmt.Fprintf(w, "%s\t%s\n", label(p[0]), p[1])
		}
	}
	_ = w.Flush() // c.out remembers its error
}

// label is a field's name for people. A dotted one is a key of the app file,
// for them to type: it stays.
func label(name string) string {
	if strings.Contains(name, ".") {
		return name
	}
	return strings.ReplaceAll(strings.TrimSuffix(name, "_bytes"), "_", " ")
}

// text is s as it may be printed; "-" where it is empty. In a pipe it can be
// read back: backslashes are doubled.
func (c *cli) text(s string) string {
	if s == "" {
		return "-"
	}
	if !c.terminal {
		s = strings.ReplaceAll(s, `\`, `\\`)
	}
	return escape(s)
}

// maybe is text for a string that may be missing.
func (c *cli) maybe(s *string) string {
	if s == nil {
		return "-"
	}
	return c.text(*s)
}

// when is a time: its distance from now on a terminal, else RFC 3339 in UTC.
func (c *cli) when(t time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case c.terminal:
		return humanize.Time(t)
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// size is a number of bytes: with a unit on a terminal.
func (c *cli) size(n int64) string {
	if c.terminal && n >= 0 {
		return humanize.IBytes(uint64(n))
	}
	return strconv.FormatInt(n, 10)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// escape writes whatever a terminal could take for a command, or a reader for
// a line's end, as a Go escape: names and notes come from anywhere.
func escape(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '\uFFFD' && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// count is "1 change", "3 changes".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return humanize.Comma(int64(n)) + " " + what + "s"
}
