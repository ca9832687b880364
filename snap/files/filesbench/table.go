package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// row is a line of the table: the results of one measurement for both sides.
type row struct {
	key, name         string
	unit              string  // "" means ms
	git, synced, ours float64 // 0: not measured
	least             float64 // target: ours is at most git's result divided by least; 0: no target
	most              float64 // target: ours is below most; 0: no target
}

// table has the results for one tree.
type table struct {
	title string
	files int // number of files; 0: special cases
	rows  []row
}

func (t *table) add(r row) { t.rows = append(t.rows, r) }

// targetFiles is the number of files for which the targets are defined.
const targetFiles = 100_000

func (t *table) print(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n", t.title)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\toperation\tgit\tgit fsync=all\tmulligan\t\tgit : mulligan\tfsync=all : mulligan\ttarget\t\t")
	for _, r := range t.rows {
		unit := r.unit
		if unit == "" {
			unit = "ms"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.key, r.name, figure(r.git), figure(r.synced), figure(r.ours), unit,
			ratio(r.git, r.ours), ratio(r.synced, r.ours), r.target(), r.verdict(t.files))
	}
	tw.Flush()
}

func figure(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func ratio(git, ours float64) string {
	if git == 0 || ours == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", git/ours)
}

func (r row) target() string {
	switch {
	case r.least > 0:
		return fmt.Sprintf(">= %.3g x", r.least)
	case r.most > 0:
		return fmt.Sprintf("< %g", r.most)
	}
	return ""
}

// verdict compares with git with its defaults. Only the largest tree and the special cases have a verdict.
func (r row) verdict(files int) string {
	if r.target() == "" || files != 0 && files < targetFiles {
		return ""
	}
	if r.least > 0 && r.git < r.least*r.ours || r.most > 0 && r.ours >= r.most {
		return "missed"
	}
	return "met"
}

// growth compares mulligan's results for trees of different sizes.
type growth struct{ tables []*table }

func (g *growth) add(t *table) { g.tables = append(g.tables, t) }

// maxGrowth bounds the growth of a time that should not depend on the tree's size.
const maxGrowth = 2

func (g *growth) print(w io.Writer) {
	if len(g.tables) < 2 {
		return
	}
	small, large := g.tables[0], g.tables[len(g.tables)-1]
	fmt.Fprintf(w, "\nfrom %d to %d files (target: at most %d times)\n", small.files, large.files, maxGrowth)
	for _, s := range small.rows {
		for _, l := range large.rows {
			if s.key != l.key || s.key != "a" && s.key != "b" && s.key != "d" {
				continue
			}
			verdict := "met"
			if l.ours > maxGrowth*s.ours {
				verdict = "missed"
			}
			fmt.Fprintf(w, "  %s  %s: %s ms to %s ms, %.1f times: %s\n", s.key, s.name, figure(s.ours), figure(l.ours), l.ours/s.ours, verdict)
		}
	}
}
