package files

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/snap"
	"mulligan/snap/files/walk"
	"mulligan/testkit"
)

// gitIn runs git in dir, away from this machine's configuration.
func gitIn(dir string, args ...string) (string, error) {
	c := exec.Command("git", args...)
	c.Dir = dir
	c.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "EDITOR=true",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
	}
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func mustGit(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := gitIn(dir, args...)
	must(t, err)
	return out
}

// gitWork does n things to the repository that move objects and refs about: commits,
// rebases, garbage collections, repackings.
func gitWork(r *rand.Rand, dir string, n int) error {
	for range n {
		var err error
		switch r.IntN(6) {
		case 0:
			_, err = gitIn(dir, "gc", "-q", "--prune=now")
		case 1:
			_, err = gitIn(dir, "rebase", "-q", "-f", "HEAD~5")
		case 2:
			_, err = gitIn(dir, "repack", "-q", "-a", "-d", "-f")
		case 3:
			_, err = gitIn(dir, "pack-refs", "--all", "--prune")
		default:
			err = os.WriteFile(fmt.Sprintf("%s/f%d", dir, r.IntN(20)), random(r, 2000), 0o644)
			if err == nil {
				_, err = gitIn(dir, "add", "-A")
			}
			if err == nil {
				_, err = gitIn(dir, "commit", "-q", "--allow-empty", "-m", fmt.Sprint(r.Uint64()))
			}
			if err == nil {
				_, err = gitIn(dir, "branch", "-f", fmt.Sprint("b", r.IntN(5)))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestGitAtWork: a checkpoint that is made while git commits, rebases and collects garbage is
// of one moment of the repository, or says that it may not be: git finds nothing missing in
// what comes back. One run follows the workspace, the next doesn't.
func TestGitAtWork(t *testing.T) {
	testkit.Need(t, "git")
	rounds := 2
	if testkit.Long() {
		rounds = 40
	}
	for _, i := range testkit.Sample(t, "ways to capture", 2, 1) {
		follow := i == 1
		t.Run(fmt.Sprintf("follow=%v", follow), func(t *testing.T) {
			f := &followed{site: newSite(t)}
			r := testkit.Rand(t, follow)
			mustGit(t, f.dir, "init", "-q", "-b", "main")
			for i := range 12 {
				write(t, fmt.Sprintf("%s/f%d", f.dir, i), fmt.Sprint("first ", i))
				mustGit(t, f.dir, "add", "-A")
				mustGit(t, f.dir, "commit", "-q", "-m", "x")
			}
			if follow {
				f.follow(t)
			}
			for range rounds {
				gitRound(t, f, r)
			}
		})
	}
}

// gitRound captures as often as it can while git works, and goes back to everything captured.
func gitRound(t *testing.T, f *followed, r *rand.Rand) {
	t.Helper()
	done := make(chan error, 1)
	work := rand.New(rand.NewPCG(r.Uint64(), 1))
	go func() { done <- gitWork(work, f.dir, 25) }()
	var shots []snap.Snapshot
	for working := true; working; {
		f.n++
		s, err := f.Capture(t.Context(), snap.CaptureRequest{ID: snap.SnapshotID(fmt.Sprintf("fs-%d", f.n))})
		switch {
		case err == nil:
			shots = append(shots, s)
		case !walk.Transient(err):
			t.Fatal(err)
		}
		select {
		case err := <-done:
			must(t, err)
			working = false
		default:
		}
	}
	last := f.capture(t)
	whole, warned := 0, 0
	for _, s := range shots {
		if strings.Contains(strings.Join(s.Warnings, "\n"), ".git") {
			warned++
			continue
		}
		f.restore(t, s.ID)
		if out, err := gitIn(f.dir, "fsck", "--full", "--strict"); err != nil || strings.Contains(out, "missing") {
			t.Errorf("%s: %v\n%s", s.ID, err, out)
		}
		if locks, _ := filepath.Glob(f.dir + "/.git/*.lock"); len(locks) > 0 {
			t.Errorf("%s: nothing was said of %q", s.ID, locks)
		}
		whole++
	}
	f.restore(t, last.ID)
	t.Logf("%d checkpoints while git worked: %d whole, %d with a warning", len(shots), whole, warned)
	if whole == 0 {
		t.Error("no checkpoint was whole")
	}
}

// TestGitLock: a lock that git holds all the time is captured, and spoken of.
func TestGitLock(t *testing.T) {
	for _, follow := range []bool{false, true} {
		f := &followed{site: newSite(t, func(c *Config) { c.MaxBytes = 3 << 20 })}
		mustGit(t, f.dir, "init", "-q", "sub/repo")
		write(t, f.dir+"/sub/repo/.git/objects/pack/large", strings.Repeat("x", 1<<20)) // is read again and again, and counts once
		if follow {
			f.follow(t)
		}
		if s := f.capture(t); len(s.Warnings) != 0 {
			t.Errorf("follow=%v: nothing is at work: %q", follow, s.Warnings)
		}
		write(t, f.dir+"/sub/repo/.git/index.lock", "")
		if s := f.capture(t); len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], f.dir+"/sub/repo/.git") || !strings.Contains(s.Warnings[0], "git fsck") {
			t.Errorf("follow=%v: a lock: %q", follow, s.Warnings)
		}
	}
}

// TestReadAgainCountsOnce has a folder change after it was listed: it is listed again, and counts once for the limit.
func TestReadAgainCountsOnce(t *testing.T) {
	s := newSite(t, func(c *Config) { c.MaxFiles = 60 })
	const again = 5
	for i := range 30 {
		write(t, fmt.Sprintf("%s/d/f%d", s.dir, i), "")
	}
	for i := range again {
		write(t, fmt.Sprintf("%s/spare-%d/in", s.state, i), "")
	}
	write(t, s.dir+"/d/made/in", "")
	times := 0
	s.Driver.walker.Before = func(path string) error { // when d was listed, and what is below it was not
		if path == "d/made/in" && times < again {
			must(t, os.RemoveAll(s.dir+"/d/made"))
			must(t, os.Rename(fmt.Sprintf("%s/spare-%d", s.state, times), s.dir+"/d/made"))
			times++
		}
		return nil
	}
	s.capture(t)
	if times != again {
		t.Errorf("the folder changed %d times", times)
	}
}
