package files

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
)

// during gives the writes that f makes.
func (f *followed) during(t testing.TB, do func()) []snap.Write {
	t.Helper()
	from := f.flush(t)
	do()
	w, err := f.Writes(t.Context(), from, f.flush(t))
	must(t, err)
	return w
}

// revert takes writes back, and checks that nothing but what it says changed.
func (f *followed) revert(t testing.TB, force bool, writes ...[]snap.Write) snap.Reverted {
	t.Helper()
	sw, how := f.prepareRevert(t, force, slices.Concat(writes...))
	if sw == nil {
		return how
	}
	before := listing(t, f.dir)
	must(t, sw.Commit(t.Context()))
	p, err := sw.Check(t.Context())
	must(t, err)
	if !p.Match {
		t.Fatalf("after the revert: %+v", p)
	}
	must(t, sw.Finish(t.Context()))
	for _, l := range listing(t, f.dir) {
		if slices.Contains(before, l) {
			continue
		}
		var path string
		if _, err := fmt.Sscanf(l, "%q", &path); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Lstat(filepath.Join(f.dir, path))
		must(t, err)
		if !slices.Contains(how.Paths, path) && !fi.IsDir() { // a folder's time may move
			t.Errorf("changed and not told: %s", l)
		}
	}
	return how
}

func (f *followed) prepareRevert(t testing.TB, force bool, writes []snap.Write) (snap.Switch, snap.Reverted) {
	t.Helper()
	base := f.site.capture(t)
	f.n++
	sw, how, err := f.PrepareRevert(t.Context(), snap.RevertRequest{
		ID: snap.RestoreID(fmt.Sprintf("op-%d", f.n)), Base: base.ID, Writes: writes, Force: force,
	})
	must(t, err)
	return sw, how
}

func (f *followed) read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, path))
	if os.IsNotExist(err) {
		return "(none)"
	}
	must(t, err)
	return string(b)
}

const poem = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n"

// TestRevertAlone takes back writes of every kind that nobody touched since.
func TestRevertAlone(t *testing.T) {
	f := newFollowed(t)
	in := func(p string) string { return filepath.Join(f.dir, p) }
	for _, p := range []string{"edited", "gone", "moved", "moded", "swapped", "tree/a", "tree/b/c", "becomes-folder", "folder/was"} {
		write(t, in(p), "the old "+p)
	}
	must(t, os.Symlink("old", in("link")))
	must(t, os.MkdirAll(in("bare/empty"), 0o750))
	must(t, unix.Setxattr(in("moded"), "user.k", []byte("v"), 0))
	write(t, in("other"), "others' own")
	before := listing(t, f.dir)

	first := f.during(t, func() {
		write(t, in("edited"), "new")
		must(t, os.Remove(in("gone")))
		must(t, os.Rename(in("moved"), in("moved-away")))
		must(t, os.Chmod(in("moded"), 0o755))
		must(t, unix.Removexattr(in("moded"), "user.k"))
	})
	second := f.during(t, func() {
		must(t, os.RemoveAll(in("tree")))
		must(t, os.Remove(in("link")))
		must(t, os.Symlink("new", in("link")))
		must(t, os.Remove(in("becomes-folder")))
		write(t, in("becomes-folder/x/y"), "y")
		must(t, os.RemoveAll(in("folder")))
		write(t, in("folder"), "a file now")
		must(t, os.RemoveAll(in("bare")))
		write(t, in("made/deep/down"), "made")
		must(t, unix.Mkfifo(in("pipe"), 0o600))
		write(t, in("edited"), "newer")
	})
	write(t, in("other"), "others went on")
	write(t, in("others-new"), "too")
	how := f.revert(t, false, first, second)
	if len(how.Left) > 0 || len(how.Merged) > 0 {
		t.Errorf("%+v", how)
	}
	write(t, in("other"), "others' own")
	must(t, os.Remove(in("others-new")))
	same(t, "reverted", timeless(listing(t, f.dir)), timeless(before))
	if again := f.revert(t, false, first, second); len(again.Paths)+len(again.Left) > 0 {
		t.Errorf("a second time: %+v", again)
	}
}

// timeless leaves the times of folders out, and of what this test writes itself.
func timeless(lines []string) []string {
	var out []string
	for _, l := range lines {
		w := strings.Fields(l)
		if strings.HasPrefix(w[1], "4") || w[0] == `"other"` {
			w[3] = "-"
		}
		out = append(out, strings.Join(w, " "))
	}
	return out
}

// TestRevertBesideOthers has somebody else write after the writes, and between them.
func TestRevertBesideOthers(t *testing.T) {
	edit := func(line, to string) func(string) string {
		return func(s string) string { return strings.Replace(s, line+"\n", to+"\n", 1) }
	}
	big := strings.Repeat("a line that is long enough to make it a large file\n", 1<<15)
	for _, c := range []struct {
		name               string
		old                string // "(none)": there is none
		ours, theirs, more func(string) string
		want               string
		why                snap.ConflictReason
		merged             bool
	}{
		{name: "another line", old: poem, ours: edit("two", "2"), theirs: edit("eight", "8"), want: edit("eight", "8")(poem), merged: true},
		{name: "the same line", old: poem, ours: edit("two", "2"), theirs: edit("2", "II"), want: edit("two", "II")(poem), why: snap.Overlaps},
		{name: "the next line", old: poem, ours: edit("two", "2"), theirs: edit("three", "3"), want: edit("two\nthree", "2\n3")(poem), why: snap.Overlaps},
		{name: "between two edits", old: poem, ours: edit("two", "2"), theirs: edit("five", "5"), more: edit("eight", "8"), want: edit("five", "5")(poem), merged: true},
		{name: "between two edits of one line", old: poem, ours: edit("two", "2"), theirs: edit("2", "II"), more: edit("II", "ii"), want: edit("two", "ii")(poem), why: snap.Overlaps},
		{name: "undone by others", old: poem, ours: edit("two", "2"), theirs: edit("2", "two"), want: poem},
		{name: "binary", old: "\x00\n" + poem, ours: edit("two", "2"), theirs: edit("eight", "8"), want: "\x00\n" + edit("eight", "8")(edit("two", "2")(poem)), why: snap.Binary},
		{name: "not UTF-8", old: "\xff\n" + poem, ours: edit("two", "2"), theirs: edit("eight", "8"), want: "\xff\n" + edit("eight", "8")(edit("two", "2")(poem)), why: snap.Binary},
		{name: "large", old: poem + big, ours: edit("two", "2"), theirs: edit("eight", "8"), want: edit("eight", "8")(edit("two", "2")(poem + big)), why: snap.TooLarge},
		{name: "made, then edited", old: "(none)", ours: func(string) string { return poem }, theirs: edit("two", "2"), want: edit("two", "2")(poem), why: snap.Edited},
		{name: "made, then removed", old: "(none)", ours: func(string) string { return poem }, theirs: func(string) string { return "(none)" }, want: "(none)"},
		{name: "edited, then removed", old: poem, ours: edit("two", "2"), theirs: func(string) string { return "(none)" }, want: "(none)", why: snap.Removed},
		{name: "removed, then another made", old: poem, ours: func(string) string { return "(none)" }, theirs: func(string) string { return "else" }, want: "else", why: snap.Replaced},
		{name: "removed, then made again", old: poem, ours: func(string) string { return "(none)" }, theirs: func(string) string { return poem }, want: poem},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFollowed(t)
			path := filepath.Join(f.dir, "dir/file")
			put := func(s string) {
				if s == "(none)" {
					if err := os.Remove(path); !os.IsNotExist(err) {
						must(t, err)
					}
					return
				}
				write(t, path, s)
			}
			write(t, f.dir+"/dir/sibling", "stays")
			put(c.old)
			w := f.during(t, func() { put(c.ours(f.read(t, "dir/file"))) })
			put(c.theirs(f.read(t, "dir/file")))
			if c.more != nil {
				w = append(w, f.during(t, func() { put(c.more(f.read(t, "dir/file"))) })...)
			}
			how := f.revert(t, false, w)
			if got := f.read(t, "dir/file"); got != c.want {
				t.Errorf("is %.200q, want %.200q", got, c.want)
			}
			if c.why == "" && len(how.Left) > 0 || c.why != "" && (len(how.Left) != 1 || how.Left[0] != snap.Conflict{Path: "dir/file", Why: c.why}) {
				t.Errorf("left alone: %v, want %q", how.Left, c.why)
			}
			if c.merged != (len(how.Merged) == 1) {
				t.Errorf("merged: %v", how.Merged)
			}
			if c.why != "" {
				if how := f.revert(t, true, w); f.read(t, "dir/file") != c.old || len(how.Paths) == 0 {
					t.Errorf("forced: %.100q, %+v", f.read(t, "dir/file"), how)
				}
			}
		})
	}
}

// TestRevertParts has others change another part of the same thing: its mode, its
// attributes, what is in a folder, the folder that it was in.
func TestRevertParts(t *testing.T) {
	f := newFollowed(t)
	in := func(p string) string { return filepath.Join(f.dir, p) }
	write(t, in("script"), poem)
	write(t, in("lost/file"), "lost")
	write(t, in("exec"), poem)
	w := f.during(t, func() {
		must(t, os.Chmod(in("script"), 0o755))
		must(t, os.Chmod(in("exec"), 0o755))
		write(t, in("made/ours"), "ours")
		must(t, os.RemoveAll(in("lost")))
	})
	write(t, in("script"), "edited")
	must(t, os.Chmod(in("exec"), 0o700))
	write(t, in("made/theirs"), "theirs")
	write(t, in("lost"), "a file where the folder was")

	how := f.revert(t, false, w)
	want := []snap.Conflict{{Path: "exec", Why: snap.Overlaps}, {Path: "lost", Why: snap.Replaced}, {Path: "lost/file", Why: snap.NoParent}, {Path: "made", Why: snap.NotEmpty}}
	if !slices.Equal(how.Left, want) {
		t.Errorf("left alone: %v, want %v", how.Left, want)
	}
	fi, err := os.Stat(in("script"))
	must(t, err)
	if fi.Mode() != 0o644 || f.read(t, "script") != "edited" {
		t.Errorf("script: %v, %q", fi.Mode(), f.read(t, "script"))
	}
	if f.read(t, "made/ours") != "(none)" || f.read(t, "made/theirs") != "theirs" {
		t.Error("made is not as it should be")
	}

	how = f.revert(t, true, w)
	if want := []snap.Conflict{{Path: "made", Why: snap.NotEmpty}}; !slices.Equal(how.Left, want) {
		t.Errorf("forced, and left alone: %v", how.Left)
	}
	if f.read(t, "lost/file") != "lost" || f.read(t, "made/theirs") != "theirs" {
		t.Error("forced: not as it should be")
	}
}

// TestRevertOverARestart takes back what was written before a new process.
func TestRevertOverARestart(t *testing.T) {
	f := newFollowed(t)
	write(t, f.dir+"/a", poem)
	w := f.during(t, func() { write(t, f.dir+"/a", "new"); write(t, f.dir+"/b", "new") })
	f.stop()
	write(t, f.dir+"/b", "edited while nobody looked")
	f.open(t)
	f.follow(t)
	how := f.revert(t, false, w)
	if f.read(t, "a") != poem || len(how.Left) != 1 || how.Left[0].Why != snap.Edited {
		t.Errorf("%+v", how)
	}
}

// TestRevertUndone calls a revert off after it was made, from a new process.
func TestRevertUndone(t *testing.T) {
	f := newFollowed(t)
	write(t, f.dir+"/a", poem)
	w := f.during(t, func() {
		write(t, f.dir+"/a", strings.Replace(poem, "two", "2", 1))
		write(t, f.dir+"/new", "new")
	})
	write(t, f.dir+"/a", strings.Replace(f.read(t, "a"), "eight", "8", 1))
	f.flush(t)
	before := listing(t, f.dir)
	sw, how := f.prepareRevert(t, false, w)
	must(t, sw.Commit(t.Context()))
	if len(how.Paths) != 2 || f.read(t, "a") != strings.Replace(poem, "eight", "8", 1) {
		t.Fatalf("%+v: %q", how, f.read(t, "a"))
	}
	f.restart(t)
	sw, err := f.Resume(t.Context(), snap.RestoreID(fmt.Sprintf("op-%d", f.n)))
	must(t, err)
	must(t, sw.Undo(t.Context()))
	p, err := sw.Check(t.Context())
	must(t, err)
	if !p.Match {
		t.Errorf("%+v", p)
	}
	must(t, sw.Finish(t.Context()))
	same(t, "undone", timeless(listing(t, f.dir)), timeless(before))
}

// testKilledScope kills restores of single paths at every failpoint: whichever way they then
// go, nothing of theirs stays beside the paths.
func testKilledScope(t *testing.T) {
	s := newSite(t)
	paths := []string{"a", "b", "dir/c", "dir/gone"}
	for _, p := range append(paths, "beside", "dir/beside") {
		write(t, filepath.Join(s.dir, p), "old "+p)
	}
	old := s.capture(t)
	for _, p := range paths[:3] {
		must(t, os.Remove(filepath.Join(s.dir, p)))
		must(t, os.Symlink("a link now", filepath.Join(s.dir, p)))
	}
	must(t, os.Remove(filepath.Join(s.dir, "dir/gone")))
	before := timeless(listing(t, s.dir))
	ways := map[string]int{}
	for n := 1; ; n++ {
		base := s.capture(t)
		_, err := s.PrepareScoped(t.Context(), snap.RestoreRequest{ID: "op-child", Target: old.ID, Base: base.ID}, paths)
		must(t, err)
		killed := s.play(t, "commit", n, 0)
		write(t, filepath.Join(s.dir, "beside"), fmt.Sprint("others go on ", n))
		sw, err := s.Resume(t.Context(), "op-child")
		must(t, err)
		if n%2 == 0 { // forward, and then back all the same
			must(t, sw.Commit(t.Context()))
			if got := listing(t, s.dir); len(got) != len(before)+1 {
				t.Fatalf("killed at failpoint %d, and forward: %q", n, got)
			}
		}
		must(t, sw.Undo(t.Context()))
		p, err := sw.Check(t.Context())
		must(t, err)
		if !p.Match {
			t.Fatalf("killed at failpoint %d: %+v", n, p)
		}
		must(t, sw.Finish(t.Context()))
		write(t, filepath.Join(s.dir, "beside"), "old beside")
		same(t, fmt.Sprintf("killed at failpoint %d", n), untimed(timeless(listing(t, s.dir)), "beside"), untimed(before, "beside"))
		if !killed {
			break
		}
		ways[[]string{"forward", "back"}[n%2]]++
	}
	t.Logf("%v", ways)
	if ways["forward"] < 3 {
		t.Error("too few failpoints")
	}
}

// untimed leaves the time of one path out.
func untimed(lines []string, path string) []string {
	out := slices.Clone(lines)
	for i, l := range out {
		if w := strings.Fields(l); w[0] == fmt.Sprintf("%q", path) {
			w[3] = "-"
			out[i] = strings.Join(w, " ")
		}
	}
	return out
}
