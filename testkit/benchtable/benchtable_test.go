package benchtable

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		row           Row
		goal, verdict string
	}{
		{Row{Mulligan: 10, Others: []Other{{"git", 99}}}, "", ""},
		{Row{Mulligan: 10, Others: []Other{{"git", 99}}, Times: 10}, ">= 10 times", "missed"},
		{Row{Mulligan: 10, Others: []Other{{"git", 100}}, Times: 10}, ">= 10 times", "met"},
		{Row{Mulligan: 10, Others: []Other{{"git", 1000}, {"cp", 99}}, Times: 10}, ">= 10 times", "missed"},
		{Row{Mulligan: 10, Times: 10}, "", ""}, // there is nothing to compare it with
		{Row{Mulligan: 10, Unit: "ms", Below: 10}, "< 10 ms", "missed"},
		{Row{Mulligan: 9.9, Unit: "ms", Below: 10}, "< 10 ms", "met"},
		{Row{Mulligan: 9.9, Unit: "ms", Below: 10, Others: []Other{{"cp", 9}}, Times: 1}, ">= 1 times, < 10 ms", "missed"},
		{Row{Mulligan: 11, Unit: "ms", Below: 10, Smaller: true}, "< 10 ms", ""},
	} {
		if goal, verdict := c.row.Goal(), c.row.Verdict(); goal != c.goal || verdict != c.verdict {
			t.Errorf("%+v: the goal is %q and the verdict %q, want %q and %q", c.row, goal, verdict, c.goal, c.verdict)
		}
	}
}

func TestTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "table")
	t.Setenv("BENCH_TABLE", file)
	for _, r := range []Row{
		{Part: "forks", What: "first fork", Unit: "s", Mulligan: 2.5, Others: []Other{{"cp", 3}}, Times: 1},
		{Part: "files", What: "rollback", Unit: "ms", Mulligan: 1234.5, Below: 60},
		{Part: "forks", What: "each further fork", Unit: "s", Mulligan: 0.01234, Others: []Other{{"cp", 3}, {"btrfs", 0.5}}},
	} {
		Report(t, r)
	}
	rows, err := Read(file)
	if err != nil || len(rows) != 3 {
		t.Fatalf("%+v, %v", rows, err)
	}
	var got strings.Builder
	if err := Print(&got, rows); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"", "forks", "  first fork         2.50 s    cp 3.00 s (1.20 x)                         >= 1 times  met",
		"  each further fork  0.0123 s  cp 3.00 s (243 x); btrfs 0.500 s (40.5 x)",
		"", "files", "  rollback  1234 ms    < 60 ms  missed", "", "1 goals met, 1 missed", "",
	}
	lines := strings.Split(got.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	if !slices.Equal(lines, want) {
		t.Errorf("the table is\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}
