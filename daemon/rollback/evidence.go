package rollback

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"mulligan/daemon/app"
	"mulligan/ipc"
	"mulligan/snap"
)

// verdict is what a receipt's confidence rests on.
type verdict struct {
	done     bool // the app is at the target
	layers   int  // that were restored
	compared int  // of them, those whose contents were read back and are the checkpoint's
	unwell   bool // the health check failed after it
}

// confidence says how sure it is that the app is what the checkpoint holds, and well.
// docs/explanation/checkpoints.md has the table.
func (v verdict) confidence() float64 {
	switch {
	case !v.done:
		return 0
	case v.compared < v.layers && v.unwell:
		return 0.25
	case v.compared < v.layers || v.unwell:
		return 0.5
	}
	return 1
}

// verdict gathers it; err is why the rollback failed, if it did.
func (r *rollback) verdict(done bool, err error) verdict {
	v := verdict{done: done, layers: len(r.parts), unwell: err != nil}
	for _, p := range r.parts {
		if p.proof != nil && p.proof.Match && !p.proof.Shallow {
			v.compared++
		}
	}
	return v
}

// evidence names what was really gathered: how each stage went, and the hash of each
// layer that was read back.
func (r *rollback) evidence() []string {
	list := []string{}
	for _, s := range r.stages.ran {
		list = append(list, fmt.Sprintf("stage:%s:%s", s.Stage, s.Status))
	}
	for _, p := range r.parts {
		if p.proof != nil && !p.proof.Post.IsZero() && !p.proof.Shallow {
			list = append(list, fmt.Sprintf("hash:%s:%s", p.Name, p.proof.Post))
		}
	}
	return list
}

// wordingPatience is how long a receipt waits for the words of what changed in a database.
const wordingPatience = 5 * time.Second

// word gives the changes of databases as a dry run words them: rows, and DDL. Where that
// takes long, what the driver said of its switch has to do.
func (r *rollback) word(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, wordingPatience)
	defer cancel()
	for i := range r.parts {
		p := &r.parts[i]
		differ, ok := p.Driver.(snap.Differ)
		if !ok || !p.IsDB() || p.ReplaysLog() || p.base == "" || p.target == "" {
			continue
		}
		if list, err := differ.Diff(ctx, p.target, p.base, nil); err == nil && (len(list) > 0) == (p.total > 0) {
			p.list, p.total = list, len(list)
		}
	}
}

// maxOfDatabases is how many of a receipt's changes may be of other layers than files
// where there are more of those than it lists.
const maxOfDatabases = maxChanges / 2

// listed gives the changes that a receipt lists, the files before the other layers, and
// how many there are.
func (r *rollback) listed() (list []ipc.Change, total int) {
	rest := 0
	for _, p := range r.parts {
		total += p.total
		if p.Name != snap.Files {
			rest += len(p.list)
		}
	}
	list = []ipc.Change{}
	for _, p := range r.parts {
		room := maxChanges - len(list)
		if p.Name == snap.Files {
			room = maxChanges - min(rest, maxOfDatabases)
		}
		for _, c := range p.list[:min(len(p.list), room)] {
			list = append(list, shownChange(p, c))
		}
	}
	return list, total
}

// fold puts the changes below .git, if there are any, into one line behind the others.
func (r *rollback) fold(all []snap.Change) (list []snap.Change, total int) {
	inGit := func(c snap.Change) bool { return c.Path == ".git" || strings.HasPrefix(c.Path, ".git/") }
	git := slices.DeleteFunc(slices.Clone(all), func(c snap.Change) bool { return !inGit(c) })
	list = slices.DeleteFunc(slices.Clone(all), inGit)
	if len(git) > 0 {
		now := app.HeadOf(r.a.Rec())
		if r.safety.ID != "" {
			now = r.safety.Ref
		}
		list = append(list, foldGit(git, now, r.target.Ref))
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
