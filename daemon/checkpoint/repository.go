package checkpoint

import (
	"fmt"
	"slices"
	"strings"

	"mulligan/snap"
)

// FoldRepository puts the changes below .git, if there are any, into one line behind the others. now and
// then are the commits that are checked out, before and after.
func FoldRepository(all []snap.Change, now, then *string) (list []snap.Change, total int) {
	inGit := func(c snap.Change) bool { return c.Path == ".git" || strings.HasPrefix(c.Path, ".git/") }
	git := slices.DeleteFunc(slices.Clone(all), func(c snap.Change) bool { return !inGit(c) })
	list = slices.DeleteFunc(slices.Clone(all), inGit)
	if len(git) > 0 {
		list = append(list, foldGit(git, now, then))
	}
	return list, len(list)
}

// foldGit words what happened to a repository in one change: its commit, branches and
// index. now and then are the commits that are checked out, before and after.
func foldGit(changes []snap.Change, now, then *string) snap.Change {
	one := snap.Change{Path: ".git", Operation: snap.Modify}
	var words, branches []string
	index := false
	for _, c := range changes {
		if c.Path == ".git" && c.Operation != snap.Modify {
			one.Operation = c.Operation
		}
		if name, ok := strings.CutPrefix(c.Path, ".git/refs/heads/"); ok && !strings.HasSuffix(c.Summary, "folder") {
			branches = append(branches, name)
		}
		index = index || c.Path == ".git/index"
	}
	if was, is := short(now), short(then); was != is {
		words = append(words, "commit "+was+" → "+is)
	}
	if len(branches) > 0 {
		const most = 3
		more := ""
		if n := len(branches) - most; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		words = append(words, "branches "+strings.Join(branches[:min(len(branches), most)], ", ")+more)
	}
	if index {
		words = append(words, "index")
	}
	if len(changes) == 1 {
		words = append(words, "1 path")
	} else {
		words = append(words, fmt.Sprintf("%d paths", len(changes)))
	}
	one.Summary = strings.Join(words, "; ")
	return one
}

// short is the beginning of a commit's name.
func short(sha *string) string {
	if sha == nil {
		return "none"
	}
	return (*sha)[:min(len(*sha), 9)]
}
