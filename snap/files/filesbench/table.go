package main

import (
	"fmt"
	"strconv"
	"time"

	"mulligan/testkit/benchtable"
)

// table has the results for one tree.
type table struct {
	title string
	files int // number of files; 0: special cases
	rows  []keyed
}

// keyed is a row with the letter by which BENCH_ROWS chooses it.
type keyed struct {
	key string
	benchtable.Row
}

// targetFiles is the number of files for which the goals are defined.
const targetFiles = 100_000

var started = time.Now()

// add prints a row, with how many seconds the run has taken until then, and appends it to the table of the run.
func (t *table) add(key string, r benchtable.Row) error {
	r.Part, r.Smaller = t.title, t.files != 0 && t.files < targetFiles
	if r.Unit == "" {
		r.Unit = "ms"
	}
	fmt.Printf("%4.0f s  %s %s\n", time.Since(started).Seconds(), key, r)
	t.rows = append(t.rows, keyed{key, r})
	return benchtable.Append(r)
}

// fixedCost are the keys of those rows whose times should not depend on the tree's size.
var fixedCost = map[string]bool{"a": true, "b": true, "d": true}

// maxGrowth bounds the growth of such a time.
const maxGrowth = 2

// growth compares mulligan's results for the smallest tree and the largest.
func growth(tables []*table) (*table, error) {
	small, large := tables[0], tables[len(tables)-1]
	t := &table{title: fmt.Sprintf("what the size of the tree changes: mulligan with %d files beside mulligan with %d", large.files, small.files)}
	if small == large {
		return t, nil
	}
	for _, l := range large.rows {
		for _, s := range small.rows {
			if s.key != l.key || s.What != l.What || s.Mulligan == 0 {
				continue
			}
			r := benchtable.Row{What: l.What, Unit: l.Unit, Mulligan: l.Mulligan, Others: []benchtable.Other{{Name: strconv.Itoa(small.files), Value: s.Mulligan}}}
			if fixedCost[l.key] {
				r.Times = 1. / maxGrowth
			}
			if err := t.add(l.key, r); err != nil {
				return t, err
			}
		}
	}
	return t, nil
}
