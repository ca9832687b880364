package output

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

// PrintJSON prints v as the API writes it, indented for a terminal.
func (p *Printer) PrintJSON(v any) error {
	enc := json.NewEncoder(p.Stdout)
	if p.Terminal {
		enc.SetIndent("", "  ")
	}
	return errs.Wrap(errs.Failed, "print", enc.Encode(v))
}

// Table prints rows: aligned and under header on a terminal, else a line each,
// the fields separated by tabs. The fields hold no control characters.
func (p *Printer) Table(header []string, rows [][]string) {
	if !p.Terminal {
		for _, row := range rows {
			fmt.Fprintln(p.Stdout, strings.Join(row, "\t"))
		}
		return
	}
	w := tabwriter.NewWriter(p.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // p.Stdout remembers its error
}

// Fields prints names and values, a pair a line. On a terminal those without a
// value are left out.
func (p *Printer) Fields(pairs [][2]string) {
	if !p.Terminal {
		for _, pair := range pairs {
			fmt.Fprintf(p.Stdout, "%s\t%s\n", pair[0], pair[1])
		}
		return
	}
	w := tabwriter.NewWriter(p.Stdout, 0, 0, 2, ' ', 0)
	for _, pair := range pairs {
		if pair[1] != "-" {
			fmt.Fprintf(w, "%s\t%s\n", label(pair[0]), pair[1])
		}
	}
	_ = w.Flush() // p.Stdout remembers its error
}

// label is a field's name for people. A dotted one is a key of the app file,
// for them to type: it stays.
func label(name string) string {
	if strings.Contains(name, ".") {
		return name
	}
	return strings.ReplaceAll(strings.TrimSuffix(name, "_bytes"), "_", " ")
}

// Text is s as it may be printed; "-" where it is empty. In a pipe it can be
// read back: backslashes are doubled.
func (p *Printer) Text(s string) string {
	if s == "" {
		return "-"
	}
	if !p.Terminal {
		s = strings.ReplaceAll(s, `\`, `\\`)
	}
	return Escape(s)
}

// OptionalText is text for a string that may be missing.
func (p *Printer) OptionalText(s *string) string {
	if s == nil {
		return "-"
	}
	return p.Text(*s)
}

// Time is a time: its distance from now on a terminal, else RFC 3339 in UTC.
func (p *Printer) Time(t time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case p.Terminal:
		return humanize.Time(t)
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// Size is a number of bytes: with a unit on a terminal.
func (p *Printer) Size(n int64) string {
	if p.Terminal && n >= 0 {
		return humanize.IBytes(uint64(n))
	}
	return strconv.FormatInt(n, 10)
}

// YesNo is a truth value as it is printed.
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Escape writes whatever a terminal could take for a command, or a reader for
// a line's end, as a Go escape: names and notes come from anywhere.
func Escape(s string) string {
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

// Count is "1 change", "3 changes".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return humanize.Comma(int64(n)) + " " + what + "s"
}

// EscapeLine escapes a line of a file, whose tabs may stay.
func EscapeLine(line string) string {
	fields := strings.Split(line, "\t")
	for i := range fields {
		fields[i] = Escape(fields[i])
	}
	return strings.Join(fields, "\t")
}
