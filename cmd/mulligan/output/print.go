package output

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/dustin/go-humanize"

	"mulligan/errs"
	"mulligan/ipc"
)

// PrintJSON prints v as JSON, indented on a terminal; or as the last event, where events are wanted.
func (p *Printer) PrintJSON(v any) error {
	if p.Events {
		return p.PrintEvent(ipc.EventResult, v)
	}
	enc := json.NewEncoder(p.Stdout)
	if p.Terminal {
		enc.SetIndent("", "  ")
	}
	return errs.Wrap(errs.Failed, "print", enc.Encode(v))
}

// PrintEvent prints an event as a line of JSON, as soon as it happens.
func (p *Printer) PrintEvent(name string, data any) error {
	event := struct {
		Event string `json:"event"`
		Data  any    `json:"data"`
	}{name, data}
	return errs.Wrap(errs.Failed, "print", json.NewEncoder(p.Stdout).Encode(event))
}

// Table prints rows of fields. On a terminal the columns are aligned under
// header; where it is too narrow, spare columns are left out and then the widest cut. In a pipe tabs separate the fields and there is no
// header. The fields must hold no control characters.
func (p *Printer) Table(header []string, rows [][]string, spare ...string) {
	p.table(header, rows, spare, false)
}

// Prose is a Table whose last column is text for people: where the terminal is too narrow, it goes on in further lines, and nothing of
// it is cut.
func (p *Printer) Prose(header []string, rows [][]string, spare ...string) {
	p.table(header, rows, spare, true)
}

func (p *Printer) table(header []string, rows [][]string, spare []string, wrap bool) {
	if !p.Terminal {
		for _, row := range rows {
			p.Println(strings.Join(row, "\t"))
		}
		return
	}
	p.grid(p.fit(append([][]string{header}, rows...), spare), true, wrap)
}

// Fields prints a line for each pair of a name and a value. On a terminal it
// leaves out the pairs whose value is "-".
func (p *Printer) Fields(pairs [][2]string) {
	if !p.Terminal {
		for _, pair := range pairs {
			p.Printf("%s\t%s\n", pair[0], pair[1])
		}
		return
	}
	w := tabwriter.NewWriter(p.Stdout, 0, 0, 2, ' ', 0)
	room := p.Width
	if room > 0 {
		widest := 0
		for _, pair := range pairs {
			widest = max(widest, ansi.StringWidth(label(pair[0])))
		}
		room = max(narrowest, room-widest-gap)
	}
	for _, pair := range pairs {
		if pair[1] == "-" {
			continue
		}
		// A long word, such as a hash, stays whole.
		value := pair[1]
		if room > 0 {
			value = strings.ReplaceAll(ansi.Wordwrap(value, room, ""), "\n", "\n\t")
		}
		fmt.Fprintf(w, "%s\t%s\n", label(pair[0]), value)
	}
	_ = w.Flush() // p.Stdout keeps the error
}

// label returns a field's name for people. A name with a dot is a key of the
// app file, which people type: label returns it unchanged.
func label(name string) string {
	if strings.Contains(name, ".") {
		return name
	}
	return strings.ReplaceAll(strings.TrimSuffix(name, "_bytes"), "_", " ")
}

// Text returns s escaped for printing, or "-" if s is empty. In a pipe it also
// doubles backslashes, so that programs can read s back.
func (p *Printer) Text(s string) string {
	if s == "" {
		return "-"
	}
	if !p.Terminal {
		s = strings.ReplaceAll(s, `\`, `\\`)
	}
	return Escape(s)
}

// OptionalText returns the Text of s, or "-" if s is nil.
func (p *Printer) OptionalText(s *string) string {
	if s == nil {
		return "-"
	}
	return p.Text(*s)
}

// Time returns t for printing: on a terminal its distance from now, in a pipe
// RFC 3339 in UTC. The zero time is "-".
func (p *Printer) Time(t time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case p.Terminal:
		return humanize.Time(t)
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// Size returns a number of bytes for printing, on a terminal with a unit.
func (p *Printer) Size(n int64) string {
	if p.Terminal && n >= 0 {
		return humanize.IBytes(uint64(n))
	}
	return strconv.FormatInt(n, 10)
}

// YesNo returns "yes" or "no".
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Escape replaces the characters of s that are not printable, and bytes that
// are not UTF-8, by Go's escapes. Names and notes come from anywhere; a terminal
// must not take them for commands, nor a program for the end of a line.
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

// Count returns a number with a noun in the singular or the plural: "1 change", "3 changes".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return humanize.Comma(int64(n)) + " " + what + "s"
}

// EscapeLine escapes a line of a file as Escape does, and keeps its tabs.
func EscapeLine(line string) string {
	fields := strings.Split(line, "\t")
	for i := range fields {
		fields[i] = Escape(fields[i])
	}
	return strings.Join(fields, "\t")
}
