package output

import (
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

const (
	gap = 2 // columns between two fields
	// narrowest is the width to which a field is cut at most, so that ids and times stay whole.
	narrowest = 18
	// comfortable is the width that a field should have, rather than that a spare column is there.
	comfortable = 40
)

// fit returns the rows, of which the first is a header, without as many spare columns as must go for the others to be comfortable. The
// first column that spare names goes first.
func (p *Printer) fit(rows [][]string, spare []string) [][]string {
	for _, name := range spare {
		widths := widthsOf(rows)
		least := gap * (len(widths) - 1)
		for _, w := range widths {
			least += min(w, comfortable)
		}
		if p.Width <= 0 || least <= p.Width {
			break
		}
		if i := slices.Index(rows[0], name); i >= 0 {
			for n := range rows {
				rows[n] = slices.Delete(slices.Clone(rows[n]), i, i+1)
			}
		}
	}
	return rows
}

func widthsOf(rows [][]string) (widths []int) {
	for _, row := range rows {
		for i, field := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], ansi.StringWidth(field))
		}
	}
	return widths
}

// grid prints rows with their fields aligned. If they are wider than the terminal, the widest fields are cut; with wrap, the last
// field goes on in further lines instead. The first row is a header if header is set.
func (p *Printer) grid(rows [][]string, header, wrap bool) {
	widths := widthsOf(rows)
	narrow(widths, p.Width)
	for n, row := range rows {
		var line strings.Builder
		for i, field := range row {
			if last := i == len(row)-1; last && wrap && ansi.StringWidth(field) > widths[i] {
				indent := strings.Repeat(" ", ansi.StringWidth(line.String()))
				line.WriteString(strings.ReplaceAll(ansi.Wrap(field, widths[i], ""), "\n", "\n"+indent))
				continue
			}
			field = ansi.Truncate(field, widths[i], "…")
			line.WriteString(field)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-ansi.StringWidth(field)+gap))
			}
		}
		text := line.String()
		switch {
		case header && n == 0:
			text = p.Bold(text)
		case strings.Contains(text, "  DAMAGED "):
			text = p.Red(text)
		}
		p.Println(text)
	}
}

// narrow makes the widest fields narrower until they fit into width columns together, or all are as narrow as they may be. A width of
// 0 is no limit.
func narrow(widths []int, width int) {
	if width <= 0 || len(widths) == 0 {
		return
	}
	total := gap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for total > width {
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= narrowest {
			return
		}
		widths[widest]--
		total--
	}
}

// Wrapped returns a text with lines that fit the terminal. What goes on in a further line stands below the last column of its line.
func (p *Printer) Wrapped(text string) string {
	if !p.Terminal || p.Width <= 0 {
		return text
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		indent := 0
		if i := strings.LastIndex(line, "  "); i >= 0 {
			indent = i + 2
		}
		if room := p.Width - indent; ansi.StringWidth(line) > p.Width && room >= narrowest {
			line = line[:indent] + strings.ReplaceAll(ansi.Wordwrap(line[indent:], room, ""), "\n", "\n"+strings.Repeat(" ", indent))
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

// Bold, Red, Green, Cyan and Yellow return a text as it is printed where colours are wanted.
func (p *Printer) Bold(s string) string   { return p.paint("1", s) }
func (p *Printer) Red(s string) string    { return p.paint("31", s) }
func (p *Printer) Green(s string) string  { return p.paint("32", s) }
func (p *Printer) Yellow(s string) string { return p.paint("33", s) }
func (p *Printer) Cyan(s string) string   { return p.paint("36", s) }

func (p *Printer) paint(code, s string) string {
	if !p.Colour || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
