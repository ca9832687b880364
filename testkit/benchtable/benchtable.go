// Package benchtable is the table that `make bench` ends with: in each row what mulligan took, what other programs took for the same in the same run,
// and, where there is a goal, whether it is met.
//
// Each benchmark is a process of its own. It appends its rows to the file that BENCH_TABLE names, one line of JSON each, and the command
// testkit/benchtable/print prints them all.
package benchtable

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
)

// Row is what was measured for one piece of work. All its figures have the same unit, and less is better.
type Row struct {
	Part     string // a heading: rows with the same one stand together
	What     string // the work, with its size
	Unit     string // "ms", "s", "MB", …
	Mulligan float64
	Others   []Other // the best of them is what mulligan is compared with
	Times    float64 // the goal: mulligan takes so many times less than the best other one; 0: there is no such goal
	Below    float64 // the goal: mulligan takes less than this; 0: there is no such goal
	// Smaller says that the goal is for a larger size than was measured, so it is stated, and not judged.
	Smaller bool
}

// Other is what another program took.
type Other struct {
	Name  string
	Value float64
}

// best returns the least of the others, or 0 if there is none.
func (r Row) best() (best float64) {
	for _, o := range r.Others {
		if best == 0 || o.Value < best && o.Value > 0 {
			best = o.Value
		}
	}
	return best
}

// Goal returns the goal in words, or "".
func (r Row) Goal() string {
	var goals []string
	if r.Times != 0 && r.best() > 0 {
		goals = append(goals, fmt.Sprintf(">= %.3g times", r.Times))
	}
	if r.Below != 0 {
		goals = append(goals, fmt.Sprintf("< %g %s", r.Below, r.Unit))
	}
	return strings.Join(goals, ", ")
}

// Verdict returns "met", "missed", or "" where there is no goal for what was measured.
func (r Row) Verdict() string {
	switch {
	case r.Goal() == "" || r.Smaller:
		return ""
	case r.Times != 0 && r.best() > 0 && r.best() < r.Times*r.Mulligan, r.Below != 0 && r.Mulligan >= r.Below:
		return "missed"
	}
	return "met"
}

// beside returns what the others took, and how many times that is what mulligan took.
func (r Row) beside() string {
	var list []string
	for _, o := range r.Others {
		list = append(list, fmt.Sprintf("%s %s (%s)", o.Name, figure(o.Value, r.Unit), times(o.Value, r.Mulligan)))
	}
	return strings.Join(list, "; ")
}

// String returns the row as one line.
func (r Row) String() string {
	line := fmt.Sprintf("%s: %s", r.What, figure(r.Mulligan, r.Unit))
	for _, part := range []string{r.beside(), r.Goal(), r.Verdict()} {
		if part != "" {
			line += " | " + part
		}
	}
	return line
}

// figure writes three digits of a number.
func figure(v float64, unit string) string {
	decimals := 0
	if v != 0 {
		decimals = max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	}
	return strings.TrimSpace(fmt.Sprintf("%.*f %s", decimals, v, unit))
}

func times(other, mulligan float64) string {
	if mulligan == 0 {
		return "-"
	}
	return figure(other/mulligan, "") + " x"
}

// Report logs a row, and appends it to the table of the run.
func Report(t testing.TB, r Row) {
	t.Helper()
	t.Log(r)
	if err := Append(r); err != nil {
		t.Fatal(err)
	}
}

// Append appends a row to the file that BENCH_TABLE names, if it is set.
func Append(r Row) (err error) {
	name := os.Getenv("BENCH_TABLE")
	if name == "" {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// Read reads the rows that were appended to a file.
func Read(name string) (rows []Row, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it is only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var r Row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s, row %d: %w", name, len(rows)+1, err)
		}
		rows = append(rows, r)
	}
	return rows, lines.Err()
}

// Print prints rows under their headings, in the order in which they come, and how many goals are met.
func Print(w io.Writer, rows []Row) error {
	var parts []string
	verdicts := map[string]int{}
	for _, r := range rows {
		if !slices.Contains(parts, r.Part) {
			parts = append(parts, r.Part)
		}
		verdicts[r.Verdict()]++
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, part := range parts {
		fmt.Fprintf(out, "\n%s\n", part)
		for _, r := range rows {
			if r.Part == part {
				fmt.Fprintf(out, "  %s\t%s\t%s\t%s\t%s\n", r.What, figure(r.Mulligan, r.Unit), r.beside(), r.Goal(), r.Verdict())
			}
		}
		if err := out.Flush(); err != nil { // each part has columns of its own
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\n%d goals met, %d missed\n", verdicts["met"], verdicts["missed"])
	return err
}
