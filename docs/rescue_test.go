package docs

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// caseNames are the names in the tables of broken apps.
var caseNames = regexp.MustCompile(`(?m)^\t+\{"([^"]+)", |"([A-Z][A-Za-z]+)": [a-z]+Victim`)

// TestRescues finds each app that the tests break in the table of the page, and nothing
// else in it.
func TestRescues(t *testing.T) {
	code, err := os.ReadFile("../cmd/mulligand/rescue_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var broken, told []string
	for _, m := range caseNames.FindAllStringSubmatch(string(code), -1) {
		broken = append(broken, m[1]+m[2])
	}
	for _, line := range prose(t, "docs/how-to/rescue.md") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 3 || cells[0] == "what is broken" || strings.HasPrefix(cells[0], "---") {
			continue
		}
		for _, name := range strings.Split(cells[0], "; ") {
			_, after, found := strings.Cut(name, ": ")
			if !found {
				after = name
			}
			told = append(told, strings.TrimSuffix(after, " in logical mode"))
		}
	}
	slices.Sort(broken)
	slices.Sort(told)
	if !slices.Equal(broken, told) || len(told) < 20 {
		t.Errorf("the tests break\n%s\nand the page tells of\n%s", strings.Join(broken, "\n"), strings.Join(told, "\n"))
	}
}
