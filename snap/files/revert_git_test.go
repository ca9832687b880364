package files

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/snap"
	"mulligan/testkit"
)

// gitState returns what git says of a repository: its branches, its index, and what differs from them.
func gitState(t testing.TB, dir string) string {
	t.Helper()
	return mustGit(t, dir, "for-each-ref") + mustGit(t, dir, "symbolic-ref", "HEAD") + mustGit(t, dir, "ls-files", "-s") +
		mustGit(t, dir, "--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
}

// wholeRepository checks that nothing is missing in the repository.
func wholeRepository(t testing.TB, dir string) {
	t.Helper()
	if out, err := gitIn(dir, "fsck", "--full", "--strict"); err != nil || strings.Contains(out, "missing") || strings.Contains(out, "invalid") {
		t.Errorf("git fsck: %v\n%s", err, out)
	}
}

// newRepository follows a workspace with a repository of one commit.
func newRepository(t testing.TB) *followed {
	t.Helper()
	f := newFollowed(t)
	mustGit(t, f.dir, "init", "-q", "-b", "main")
	write(t, f.dir+"/a", "1\n")
	write(t, f.dir+"/b", "1\n")
	mustGit(t, f.dir, "add", "a", "b")
	mustGit(t, f.dir, "commit", "-q", "-m", "first")
	return f
}

// commitFile commits a file with some content.
func commitFile(t testing.TB, dir, name, content string) {
	t.Helper()
	write(t, filepath.Join(dir, name), content)
	mustGit(t, dir, "add", name)
	mustGit(t, dir, "commit", "-q", "-m", name+" is "+content)
}

// TestRevertRepositoryOfOthers has others use a repository after the writes to it: all that git says of it stays.
func TestRevertRepositoryOfOthers(t *testing.T) {
	testkit.Need(t, "git")
	commit := func(t *testing.T, dir string) { commitFile(t, dir, "a", "2\n") }
	for _, c := range []struct {
		name         string
		ours, theirs func(t *testing.T, dir string)
		again        func(t *testing.T, dir string) // more of ours, after theirs
		repository   string                         // where it is, "": at the top
	}{
		{name: "a branch", ours: commit, theirs: func(t *testing.T, dir string) { mustGit(t, dir, "branch", "backup") }},
		{name: "a commit on top", ours: commit, theirs: func(t *testing.T, dir string) { commitFile(t, dir, "c", "theirs") }},
		{name: "another branch", ours: commit, theirs: func(t *testing.T, dir string) { mustGit(t, dir, "checkout", "-q", "-b", "feature") }},
		{
			name: "between two commits", ours: commit,
			theirs: func(t *testing.T, dir string) { commitFile(t, dir, "c", "theirs") },
			again:  func(t *testing.T, dir string) { commitFile(t, dir, "a", "3\n") },
		},
		{name: "an index that is refreshed", ours: commit, theirs: func(t *testing.T, dir string) {
			was, err := os.ReadFile(dir + "/.git/index")
			must(t, err)
			must(t, os.Chtimes(dir+"/b", time.Time{}, time.Unix(1e9, 0)))
			mustGit(t, dir, "status")
			if is, err := os.ReadFile(dir + "/.git/index"); err != nil || slices.Equal(is, was) {
				t.Errorf("git status did not write the index: %v", err)
			}
		}},
		{
			name:   "added to the index",
			ours:   func(t *testing.T, dir string) { write(t, dir+"/n", "n"); mustGit(t, dir, "add", "n") },
			theirs: func(t *testing.T, dir string) { write(t, dir+"/m", "m"); mustGit(t, dir, "add", "m") },
		},
		{
			name:   "collected garbage",
			ours:   func(t *testing.T, dir string) { mustGit(t, dir, "gc", "-q") },
			theirs: func(t *testing.T, dir string) { commitFile(t, dir, "c", "theirs"); mustGit(t, dir, "gc", "-q") },
		},
		{
			name:   "objects removed",
			ours:   func(t *testing.T, dir string) { mustGit(t, dir, "rm", "-q", "--cached", "b") },
			theirs: func(t *testing.T, dir string) { mustGit(t, dir, "repack", "-q", "-a", "-d") },
		},
		{
			name: "a repository that is new", repository: "sub",
			ours: func(t *testing.T, dir string) {
				mustGit(t, dir, "init", "-q", "-b", "main")
				commitFile(t, dir, "x", "ours")
			},
			theirs: func(t *testing.T, dir string) { commitFile(t, dir, "y", "theirs") },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newRepository(t)
			dir := filepath.Join(f.dir, c.repository)
			must(t, os.MkdirAll(dir, 0o755))
			w := f.during(t, func() { c.ours(t, dir) })
			c.theirs(t, dir)
			if c.again != nil {
				w = append(w, f.during(t, func() { c.again(t, dir) })...)
			}
			refs, index, head := mustGit(t, dir, "for-each-ref"), mustGit(t, dir, "ls-files", "-s"), mustGit(t, dir, "symbolic-ref", "HEAD")
			for _, force := range []bool{false, true} {
				how := f.revert(t, force, w)
				if want := (snap.Conflict{Path: filepath.Join(c.repository, ".git"), Why: snap.Repository}); !slices.Contains(how.Left, want) {
					t.Errorf("force=%v: left alone: %v, want %v", force, how.Left, want)
				}
				wholeRepository(t, dir)
				same(t, "refs", strings.Split(mustGit(t, dir, "for-each-ref"), "\n"), strings.Split(refs, "\n"))
				same(t, "index", strings.Split(mustGit(t, dir, "ls-files", "-s"), "\n"), strings.Split(index, "\n"))
				if got := mustGit(t, dir, "symbolic-ref", "HEAD"); got != head {
					t.Errorf("HEAD is %s, want %s", got, head)
				}
			}
			commitFile(t, dir, "more", "goes on")
			mustGit(t, dir, "log", "--all")
		})
	}
}

// TestRevertRepositoryAlone takes back what only the writes did to a repository.
func TestRevertRepositoryAlone(t *testing.T) {
	testkit.Need(t, "git")
	for _, c := range []struct {
		name string
		ours func(t *testing.T, dir string)
	}{
		{"a commit", func(t *testing.T, dir string) { commitFile(t, dir, "a", "2\n") }},
		{"an amended commit", func(t *testing.T, dir string) { mustGit(t, dir, "commit", "-q", "--amend", "-m", "other") }},
		{"another branch", func(t *testing.T, dir string) {
			mustGit(t, dir, "checkout", "-q", "-b", "x/y")
			commitFile(t, dir, "n", "n")
		}},
		{"collected garbage", func(t *testing.T, dir string) {
			commitFile(t, dir, "n", "n")
			mustGit(t, dir, "gc", "-q", "--prune=now")
		}},
		{"a removed repository", func(t *testing.T, dir string) { must(t, os.RemoveAll(dir+"/.git")) }},
		{"another repository", func(t *testing.T, dir string) {
			mustGit(t, dir, "init", "-q", "sub")
			commitFile(t, dir+"/sub", "x", "x")
		}},
		{"a submodule", func(t *testing.T, dir string) {
			mustGit(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "file://"+dir+"/.git", "module")
			mustGit(t, dir, "commit", "-q", "-m", "module")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newRepository(t)
			before := gitState(t, f.dir)
			w := f.during(t, func() { c.ours(t, f.dir) })
			if gone := f.read(t, ".git/HEAD") == "(none)"; !gone { // others only add an object
				write(t, f.dir+"/c", "theirs, and in no commit")
				mustGit(t, f.dir, "hash-object", "-w", "c")
			}
			if how := f.revert(t, false, w); len(how.Left) > 0 || len(how.Paths) == 0 {
				t.Errorf("%+v", how)
			}
			wholeRepository(t, f.dir)
			same(t, "git's state", strings.Split(gitState(t, f.dir), "\n"), strings.Split(before, "\n"))
			for _, p := range []string{"sub", "module", ".git/modules", ".gitmodules"} {
				if _, err := os.Lstat(filepath.Join(f.dir, p)); !os.IsNotExist(err) {
					t.Errorf("%s is still there: %v", p, err)
				}
			}
			if again := f.revert(t, false, w); len(again.Paths)+len(again.Left) > 0 {
				t.Errorf("a second time: %+v", again)
			}
		})
	}
}

// TestRevertRepositoryTwice takes two commits back, the newer one first. The older one alone stays, because the newer one needs it.
func TestRevertRepositoryTwice(t *testing.T) {
	testkit.Need(t, "git")
	f := newRepository(t)
	before := gitState(t, f.dir)
	older := f.during(t, func() { commitFile(t, f.dir, "a", "2\n") })
	between := gitState(t, f.dir)
	newer := f.during(t, func() { commitFile(t, f.dir, "b", "2\n") })
	if how := f.revert(t, false, older); !slices.Equal(how.Left, []snap.Conflict{{Path: ".git", Why: snap.Repository}}) {
		t.Errorf("the older one alone: left alone: %v", how.Left)
	}
	write(t, f.dir+"/a", "2\n") // only the file went back
	for _, c := range []struct {
		writes []snap.Write
		want   string
	}{{newer, between}, {older, before}} {
		if how := f.revert(t, false, c.writes); len(how.Left) > 0 {
			t.Errorf("left alone: %v", how.Left)
		}
		same(t, "git's state", strings.Split(gitState(t, f.dir), "\n"), strings.Split(c.want, "\n"))
	}
	wholeRepository(t, f.dir)
}

// TestRevertRepositoryWithoutPlace has others put a file where a folder with a repository was: the repository is one conflict.
func TestRevertRepositoryWithoutPlace(t *testing.T) {
	testkit.Need(t, "git")
	f := newFollowed(t)
	mustGit(t, f.dir, "init", "-q", "-b", "main", "sub")
	commitFile(t, f.dir+"/sub", "x", "x")
	before := gitState(t, f.dir+"/sub")
	w := f.during(t, func() { must(t, os.RemoveAll(f.dir+"/sub")) })
	write(t, f.dir+"/sub", "in the way")
	how := f.revert(t, false, w)
	want := []snap.Conflict{{Path: "sub", Why: snap.Replaced}, {Path: "sub/.git", Why: snap.Repository}, {Path: "sub/x", Why: snap.NoParent}}
	if !slices.Equal(how.Left, want) {
		t.Errorf("left alone: %v, want %v", how.Left, want)
	}
	if how := f.revert(t, true, w); len(how.Left) > 0 {
		t.Errorf("forced, and left alone: %v", how.Left)
	}
	wholeRepository(t, f.dir+"/sub")
	same(t, "git's state", strings.Split(gitState(t, f.dir+"/sub"), "\n"), strings.Split(before, "\n"))
}
