// Package refdoc writes the pages of docs/reference, and holds them to what the
// code says: a test makes a page anew and compares. It is for tests alone;
// `make reference` runs them with -update, which writes the pages instead.
package refdoc

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the pages of docs/reference anew")

const notice = "<!-- Made from the code by `make reference`: change it there. -->\n\n"

// Check compares the page of that name in docs/reference with text, what stands
// below its first comment, or writes it.
func Check(t testing.TB, name, text string) {
	t.Helper()
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatalf("the repository is not found: %v", err)
	}
	path := filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "docs/reference", name)
	want := notice + strings.TrimSpace(text) + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; `make reference` writes it", err)
	}
	if line, is, should := difference(string(got), want); line > 0 {
		t.Errorf("docs/reference/%s, line %d: it is\n%s\nand the code says\n%s\n`make reference` writes it anew", name, line, is, should)
	}
}

// difference is the first line, from 1, in which two texts differ; 0: in none.
func difference(a, b string) (line int, inA, inB string) {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(x), len(y)) {
		inA, inB = at(x, i), at(y, i)
		if inA != inB || i >= len(x) || i >= len(y) {
			return i + 1, inA, inB
		}
	}
	return 0, "", ""
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(nothing)"
}

// Cell is text as it may stand in a cell of a Markdown table.
func Cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", `\|`), "\n", " ")
}
