package carried

import (
	hexa "encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/errs"
)

func hex(p []byte) string { return hexa.EncodeToString(p) }

// Listed returns the files in a list of checksums, each with its path below dir.
func Listed(list []byte, dir string) (files []Source, err error) {
	for line := range strings.Lines(string(list)) {
		var s Source
		if _, err := fmt.Sscanf(line, "%s %d %q", &s.Sum, &s.Size, &s.Path); err != nil || s.Size < 0 || !filepath.IsLocal(s.Path) {
			return nil, errs.New(errs.Corrupt, "", "the list of a base copy's files is damaged")
		}
		s.At, s.Upto = filepath.Join(dir, s.Path), s.Size
		files = append(files, s)
	}
	slices.SortFunc(files, func(a, b Source) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}
