package output

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mulligan/ipc"
)

// DiffPrinter prints a diff, page by page.
type DiffPrinter struct {
	p                *Printer
	Stat, NameStatus bool // a line per change, instead of a patch
	Whole            bool // the changes within git repositories are not folded
	// Path returns a path of the workspace as it is printed. nil: as it is.
	Path   func(string) string
	inside map[string]int // changes within git repositories
}

// NewDiffPrinter returns a DiffPrinter that prints with p.
func NewDiffPrinter(p *Printer) *DiffPrinter { return &DiffPrinter{p: p} }

// Print prints one page of a diff.
func (f *DiffPrinter) Print(res ipc.Diff) {
	var rows [][]string
	for _, c := range res.Changes {
		if repo := repositoryOf(c); repo != "" && !f.Whole {
			f.fold(repo)
			continue
		}
		switch {
		case f.Stat:
			rows = append(rows, []string{statusLetter(c), f.name(c), f.p.Text(c.Summary)})
		case f.NameStatus:
			rows = append(rows, []string{statusLetter(c), f.name(c)})
		default:
			f.patch(c)
		}
	}
	if len(rows) > 0 {
		f.p.Table([]string{"", "PATH", "WHAT"}[:len(rows[0])], rows)
	}
}

// repositoryOf returns the path of the git repository that a change is in, or "".
func repositoryOf(c ipc.DiffChange) string {
	if c.Layer != "files" {
		return ""
	}
	if before, _, in := strings.Cut("/"+c.Path+"/", "/.git/"); in {
		return strings.TrimPrefix(before+"/.git", "/")
	}
	return ""
}

// fold counts a change within a git repository, which is printed as one line.
func (f *DiffPrinter) fold(repo string) {
	if f.inside == nil {
		f.inside = map[string]int{}
	}
	f.inside[repo]++
}

// PrintRepositories prints a line for each git repository whose state changed.
func (f *DiffPrinter) PrintRepositories() {
	for _, repo := range slices.Sorted(maps.Keys(f.inside)) {
		shown := f.p.Text(f.path(repo))
		what := fmt.Sprintf("%s in the repository; -- %s behind the command shows them", Count(f.inside[repo], "change"), shown)
		row := []string{"M", shown, what}
		switch {
		case !f.NameStatus && !f.Stat:
			f.p.Printf("M %s: %s\n", row[1], what)
		default:
			if f.NameStatus {
				row = row[:2]
			}
			sep := "\t"
			if f.p.Terminal {
				sep = "  "
			}
			f.p.Println(strings.Join(row, sep))
		}
	}
}

// patch prints a change as a patch, or as a line if it has none.
func (f *DiffPrinter) patch(c ipc.DiffChange) {
	switch {
	case c.Patch == "":
		why := c.Summary
		if c.NoPatch != "" {
			why += " (" + c.NoPatch + ")"
		}
		f.p.Printf("%s %s: %s\n", statusLetter(c), f.name(c), f.p.Text(why))
	case f.p.Terminal:
		for line := range strings.Lines(f.headed(c)) {
			f.p.Println(f.coloured(EscapeLine(strings.TrimSuffix(line, "\n"))))
		}
	default:
		f.p.Print(f.headed(c))
	}
}

// coloured returns a line of a patch in the colour of its kind.
func (f *DiffPrinter) coloured(line string) string {
	switch {
	case strings.HasPrefix(line, "+++ "), strings.HasPrefix(line, "--- "):
		return f.p.Bold(line)
	case strings.HasPrefix(line, "+"):
		return f.p.Green(line)
	case strings.HasPrefix(line, "-"):
		return f.p.Red(line)
	case strings.HasPrefix(line, "@@"):
		return f.p.Cyan(line)
	}
	return line
}

// name returns the path of a change, after the layer's name unless that is files.
func (f *DiffPrinter) name(c ipc.DiffChange) string {
	if c.Layer != "files" {
		return f.p.Text(c.Layer + ":" + c.Path)
	}
	return f.p.Text(f.path(c.Path))
}

// path returns a path of the workspace as it is printed.
func (f *DiffPrinter) path(path string) string {
	if f.Path == nil {
		return path
	}
	return f.Path(path)
}

// headed returns the patch of a change with the path in its head as it is printed.
func (f *DiffPrinter) headed(c ipc.DiffChange) string {
	patch := c.Patch
	for _, head := range []string{"--- a/", "+++ b/"} {
		before, after, found := strings.Cut(patch, head+c.Path+"\n")
		if found && !strings.Contains(before, "\n@@ ") { // a line of the head, and not of the contents
			patch = before + head + f.path(c.Path) + "\n" + after
		}
	}
	return patch
}

// statusLetter returns the statusLetter of a change's operation, as in git diff --name-status.
func statusLetter(c ipc.DiffChange) string {
	switch c.Operation {
	case "create":
		return "A"
	case "delete":
		return "D"
	}
	return "M"
}
