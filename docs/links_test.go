package docs

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"mulligan/errs"
)

// markdown lists the pages, as paths from the repository's top.
func markdown(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md"}
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			list = append(list, filepath.Join("docs", path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

var (
	links    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	inline   = regexp.MustCompile("`[^`]*`")
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// TestLinks follows every relative link of the pages to a file, and to a heading
// in it where the link names one.
func TestLinks(t *testing.T) {
	seen := 0
	for _, page := range markdown(t) {
		for _, l := range linksOf(t, page) {
			seen++
			if err := follow(t, page, l); err != nil {
				t.Errorf("%s links to %s: %v", page, l, err)
			}
		}
	}
	if seen < 20 {
		t.Errorf("there are only %d links", seen)
	}
}

// TestIndex finds every page in docs/README.md, and that one in README.md.
func TestIndex(t *testing.T) {
	if !slices.Contains(linksOf(t, "README.md"), "docs/README.md") {
		t.Error("README.md does not link to docs/README.md")
	}
	var named []string
	for _, l := range linksOf(t, "docs/README.md") {
		named = append(named, filepath.Join("docs", l))
	}
	for _, page := range markdown(t) {
		if page != "README.md" && page != "docs/README.md" && !slices.Contains(named, page) {
			t.Errorf("docs/README.md does not link to %s", page)
		}
	}
}

// TestTroubleshooting finds a section for each kind of error, and none for others.
func TestTroubleshooting(t *testing.T) {
	var kinds []string
	for _, k := range errs.Kinds {
		kinds = append(kinds, string(k))
	}
	var sections []string
	for _, line := range prose(t, "docs/troubleshooting.md") {
		if kind, ok := strings.CutPrefix(line, "## "); ok && strings.HasPrefix(kind, "`") {
			sections = append(sections, strings.Trim(kind, "`"))
		}
	}
	if !slices.Equal(sections, kinds) {
		t.Errorf("the sections are %v, and the kinds %v", sections, kinds)
	}
}

// prose is the lines of a page outside of its blocks of code.
func prose(t *testing.T, page string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", page))
	if err != nil {
		t.Fatal(err)
	}
	code := false
	for line := range strings.SplitSeq(string(text), "\n") {
		if strings.HasPrefix(line, "```") {
			code = !code
		} else if !code {
			lines = append(lines, line)
		}
	}
	return lines
}

// linksOf lists a page's links to other pages and to places in itself.
func linksOf(t *testing.T, page string) (list []string) {
	t.Helper()
	for _, line := range prose(t, page) {
		for _, m := range links.FindAllStringSubmatch(inline.ReplaceAllString(line, "code"), -1) {
			if u, err := url.Parse(m[1]); err != nil || u.Scheme == "" {
				list = append(list, m[1])
			}
		}
	}
	return list
}

func follow(t *testing.T, page, link string) error {
	t.Helper()
	path, place, _ := strings.Cut(link, "#")
	target := page
	if path != "" {
		target = filepath.Join(filepath.Dir(page), path)
	}
	if _, err := os.Stat(filepath.Join("..", target)); err != nil {
		return err
	}
	if place != "" && !slices.Contains(places(t, target), place) {
		return fmt.Errorf("no heading of %s is called that", target)
	}
	return nil
}

// places are the names that a page's headings are linked to by, as GitHub makes
// them: lower case, without punctuation, dashes for spaces.
func places(t *testing.T, page string) (names []string) {
	t.Helper()
	count := map[string]int{}
	for _, line := range prose(t, page) {
		level := len(line) - len(strings.TrimLeft(line, "#"))
		if level == 0 || !strings.HasPrefix(line[level:], " ") {
			continue
		}
		heading := linkText.ReplaceAllString(strings.TrimSpace(line[level:]), "$1")
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, heading)
		if n := count[name]; n > 0 {
			names = append(names, fmt.Sprintf("%s-%d", name, n))
		} else {
			names = append(names, name)
		}
		count[name]++
	}
	return names
}
