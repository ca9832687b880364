package files

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"mulligan/snap"
	"mulligan/testkit"
)

// testDay replays a day's work: a turn for each commit of a repository's
// history, and a checkpoint before each. In the end the store, with every one
// of them, is smaller than one and a half times a git repository packed by
// `git gc` that holds the same versions; the oldest goes back exactly.
//
// The history is made up, 150 commits of it, or 2,000 with MULLIGAN_TEST_LONG=1.
// MULLIGAN_BENCH_REPO names a real repository to replay instead (its last 2,000
// commits by first parents, or MULLIGAN_BENCH_TURNS of them).
func testDay(t *testing.T) {
	turns := 150
	if testkit.Long() {
		turns = 2000
	}
	repo := os.Getenv("MULLIGAN_BENCH_REPO")
	if repo == "" {
		repo = inventHistory(t, turns+1)
	} else if turns = 2000; os.Getenv("MULLIGAN_BENCH_TURNS") != "" {
		var err error
		turns, err = strconv.Atoi(os.Getenv("MULLIGAN_BENCH_TURNS"))
		must(t, err)
	}
	d := newDay(t, repo, turns+1)
	d.replay(t)
	d.rest(t, true)
	packed := d.gitSize(t)
	stored := d.cas.DiskUsage()
	t.Logf("%d turns: the store has %d KB, at most %d on the way; git gc makes %d KB of the same versions: %.2f times",
		len(d.turns), stored>>10, d.peak>>10, packed>>10, float64(stored)/float64(packed))
	if len(d.turns) < 1000 { // not a day: what may lie loose counts
		packed += 512 << 10
	}
	if float64(stored) > 1.5*float64(packed) {
		t.Errorf("the store is larger than 1.5 times the packed repository")
	}
	began := time.Now()
	must(t, d.Verify(t.Context(), d.turns[0].id, snap.Full))
	t.Logf("verifying the oldest took %v", time.Since(began))
	for i, x := range d.turns {
		if x.lines == nil {
			continue
		}
		began := time.Now()
		d.restore(t, x.id)
		took := time.Since(began)
		same(t, fmt.Sprintf("turn %d", i), listing(t, d.dir), x.lines)
		t.Logf("back to turn %d took %v", i, took)
	}
	d.exact(t)
	d.restart(t)
	must(t, d.Verify(t.Context(), d.turns[len(d.turns)-1].id, snap.Full))
}

// day is a workspace that goes through a repository's history.
type day struct {
	*followed
	repo    string
	index   string
	commits []string
	turns   []pastTurn
	peak    int64
}

type pastTurn struct {
	id    snap.SnapshotID
	lines []string // of some, what was there before it
}

func newDay(t *testing.T, repo string, commits int) *day {
	d := &day{repo: repo, index: filepath.Join(t.TempDir(), "index")}
	d.commits = strings.Fields(d.git(t, "rev-list", "--first-parent", "-n", fmt.Sprint(commits), "HEAD"))
	for i, k := 0, len(d.commits)-1; i < k; i, k = i+1, k-1 {
		d.commits[i], d.commits[k] = d.commits[k], d.commits[i]
	}
	d.followed = newFollowed(t)
	return d
}

// git runs a command on the repository, the workspace being its work tree.
func (d *day) git(t *testing.T, args ...string) string {
	t.Helper()
	dir := ""
	if d.followed != nil {
		dir = d.dir
	}
	c := exec.Command("git", args...)
	c.Env = append(os.Environ(), "GIT_DIR="+gitDir(d.repo), "GIT_INDEX_FILE="+d.index)
	if dir != "" {
		c.Env = append(c.Env, "GIT_WORK_TREE="+dir)
	}
	c.Dir = dir
	var bad bytes.Buffer
	c.Stderr = &bad
	out, err := c.Output()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, bad.String())
	}
	return strings.TrimSpace(string(out))
}

func gitDir(repo string) string {
	if _, err := os.Stat(filepath.Join(repo, ".git")); err == nil {
		return filepath.Join(repo, ".git")
	}
	return repo
}

// replay does every commit in a turn, and rests as often as somebody does who works.
func (d *day) replay(t *testing.T) {
	d.git(t, "read-tree", "-u", "--reset", d.commits[0])
	for i, c := range d.commits[1:] {
		turn := pastTurn{id: d.at(t, d.flush(t))}
		if i == 0 || i == 77 || i == len(d.commits)/2 || i == len(d.commits)-2 {
			turn.lines = listing(t, d.dir)
		}
		d.git(t, "read-tree", "-u", "--reset", c)
		d.turns = append(d.turns, turn)
		d.rest(t, i%50 == 49)
	}
	d.flush(t)
}

// rest has the journal do what it does while nothing happens, and the store
// what the daemon has it do then.
func (d *day) rest(t *testing.T, long bool) {
	t.Helper()
	j := d.follower.Session()
	must(t, j.Do(t.Context(), func() error { j.Rest(t.Context()); return nil }))
	if !long {
		return
	}
	d.peak = max(d.peak, d.cas.DiskUsage())
	_, err := d.cas.Pack(context.Background())
	must(t, err)
	_, err = d.cas.Collect(context.Background())
	must(t, err)
}

// gitSize makes a repository of the same versions and returns how many bytes it
// has once `git gc` has been through.
func (d *day) gitSize(t *testing.T) int64 {
	t.Helper()
	copied := &day{repo: t.TempDir(), index: d.index}
	copied.git(t, "init", "-q", "--bare", copied.repo)
	alternates := filepath.Join(copied.repo, "objects/info/alternates")
	must(t, os.WriteFile(alternates, []byte(filepath.Join(gitDir(d.repo), "objects")+"\n"), 0o644))
	last := ""
	for i, c := range d.commits {
		args := []string{"-c", "user.name=a", "-c", "user.email=a@example.com", "commit-tree", "-m", fmt.Sprint("turn ", i), c + "^{tree}"}
		if last != "" {
			args = append(args, "-p", last)
		}
		last = copied.git(t, args...)
	}
	copied.git(t, "update-ref", "HEAD", last)
	// One new pack of exactly these versions, as if each had been committed here.
	pack := exec.Command("sh", "-c", "git rev-list --objects HEAD | git pack-objects -q --no-reuse-delta --no-reuse-object $PWD/pack")
	pack.Dir = copied.repo
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, p := range match(t, copied.repo+"/objects/pack/*") {
		must(t, os.Remove(p))
	}
	for _, p := range match(t, copied.repo+"/pack-*") {
		must(t, os.Rename(p, filepath.Join(copied.repo, "objects/pack", filepath.Base(p))))
	}
	must(t, os.Remove(alternates))
	copied.git(t, "gc", "-q")
	copied.git(t, "fsck", "--connectivity-only")
	var size int64
	must(t, filepath.WalkDir(filepath.Join(copied.repo, "objects"), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var fi fs.FileInfo
			if fi, err = e.Info(); err == nil {
				size += fi.Size()
			}
		}
		return err
	}))
	return size
}

func match(t *testing.T, pattern string) []string {
	list, err := filepath.Glob(pattern)
	must(t, err)
	return list
}

// inventHistory makes a repository of that many commits, of source text that
// grows and changes as source text does; always the same one.
func inventHistory(t *testing.T, commits int) string {
	t.Helper()
	repo := t.TempDir()
	d := &day{repo: repo}
	d.git(t, "init", "-q", "--bare", repo)
	w := &writer{r: rand.New(rand.NewPCG(20, 26)), files: map[string][]string{}}
	var b bytes.Buffer
	for i := range commits {
		changed := w.commit(i)
		fmt.Fprintf(&b, "commit refs/heads/main\nmark :%d\ncommitter a <a@example.com> %d +0000\ndata 1\nx\n", i+1, 1_700_000_000+i)
		for _, name := range changed {
			text := strings.Join(w.files[name], "\n") + "\n"
			fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", name, len(text), text)
		}
	}
	c := exec.Command("git", "--git-dir", repo, "fast-import", "--quiet")
	c.Stdin = &b
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d.git(t, "symbolic-ref", "HEAD", "refs/heads/main")
	return repo
}

// writer edits made-up source files.
type writer struct {
	r     *rand.Rand
	files map[string][]string
	names []string
}

var vocabulary = strings.Fields(`error value result request reader writer buffer index table entry parse decode encode open close
	begin commit append remove insert update length offset count limit context handler server client config option store journal
	snapshot restore manifest folder path name size hash chunk batch queue worker timeout retry listen accept format version`)

func (w *writer) word() string { return vocabulary[w.r.IntN(len(vocabulary))] }

func (w *writer) line() string {
	a, b, c := w.word(), w.word(), w.word()
	switch w.r.IntN(5) {
	case 0:
		return fmt.Sprintf("\tif %s, err := %s.%s(%s); err != nil {", a, b, strings.ToUpper(c[:1])+c[1:], w.word())
	case 1:
		return fmt.Sprintf("\t\treturn fmt.Errorf(%q, %s)", a+" "+b+": %w", c)
	case 2:
		return fmt.Sprintf("\t%s.%s = %s(%s, %d)", a, b, c, w.word(), w.r.IntN(1000))
	case 3:
		return fmt.Sprintf("\t// %s of the %s, which the %s has to %s before it is too late", a, b, c, w.word())
	}
	return "\t}"
}

// commit makes the i-th change and lists the files that it is in.
func (w *writer) commit(i int) (changed []string) {
	if i == 0 {
		for range 60 {
			changed = append(changed, w.create())
		}
		return changed
	}
	if w.r.IntN(8) == 0 {
		changed = append(changed, w.create())
	}
	for range 1 + w.r.IntN(4) {
		name := w.names[min(w.r.IntN(len(w.names)), w.r.IntN(len(w.names)))] // some are worked on more
		if strings.Contains(strings.Join(changed, " "), name) {
			continue
		}
		w.edit(name)
		changed = append(changed, name)
	}
	return changed
}

func (w *writer) create() string {
	name := fmt.Sprintf("%s/%s%d.go", w.word(), w.word(), len(w.names))
	lines := []string{"package " + w.word(), ""}
	for range 40 + w.r.IntN(300) {
		lines = append(lines, w.line())
	}
	w.files[name], w.names = lines, append(w.names, name)
	return name
}

// edit changes a few lines at a few places.
func (w *writer) edit(name string) {
	lines := w.files[name]
	for range 1 + w.r.IntN(3) {
		at, n := 1+w.r.IntN(len(lines)-1), w.r.IntN(4)
		n = min(n, len(lines)-at)
		var fresh []string
		for range 1 + w.r.IntN(5) {
			fresh = append(fresh, w.line())
		}
		lines = append(append(append([]string{}, lines[:at]...), fresh...), lines[at+n:]...)
	}
	w.files[name] = lines
}
