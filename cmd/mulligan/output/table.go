package output

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

const (
	gap = 2 // columns between two fields
	// narrowest is the width to which a field is cut at most, so that ids and times stay whole.
	narrowest = 18
)

// grid prints rows with their fields aligned. If they are wider than the terminal, the widest fields are cut. The first row is
// a header if header is set.
func (p *Printer) grid(rows [][]string, header bool) {
	var widths []int
	for _, row := range rows {
		for i, field := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], ansi.StringWidth(field))
		}
	}
	narrow(widths, p.Width)
	for n, row := range rows {
		var line strings.Builder
		for i, field := range row {
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
