package gitref

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap/beneath"
	"mulligan/testkit"
)

// git runs git in dir, away from this machine's configuration, and gives its output.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func commit(t *testing.T, dir string) string {
	t.Helper()
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "x")
	return git(t, dir, "rev-parse", "HEAD")
}

func head(t *testing.T, dir string) (string, bool) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	root, err := beneath.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	return Head(root)
}

func want(t *testing.T, dir, sha string) {
	t.Helper()
	if got, ok := head(t, dir); got != sha || !ok {
		t.Errorf("got %q %v, want %q", got, ok, sha)
	}
}

func wantNone(t *testing.T, dir string) {
	t.Helper()
	if got, ok := head(t, dir); ok {
		t.Errorf("got %q, want none", got)
	}
}

func TestHead(t *testing.T) {
	testkit.Need(t, "git")
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			dir := t.TempDir()
			git(t, dir, "init", "-q", "-b", "feature/one", "--object-format="+format)
			wantNone(t, dir) // unborn
			first := commit(t, dir)
			want(t, dir, first)
			git(t, dir, "tag", "-a", "-m", "x", "v1") // annotated: packed-refs gets a peeled line
			git(t, dir, "pack-refs", "--all")
			want(t, dir, first)
			second := commit(t, dir) // loose again, over the packed one
			want(t, dir, second)
			git(t, dir, "checkout", "-q", "--detach", first)
			want(t, dir, first)
			git(t, dir, "checkout", "-q", "feature/one")
			git(t, dir, "symbolic-ref", "refs/heads/alias", "refs/heads/feature/one")
			git(t, dir, "symbolic-ref", "HEAD", "refs/heads/alias")
			want(t, dir, second)
			git(t, dir, "symbolic-ref", "HEAD", "refs/heads/none")
			wantNone(t, dir)
		})
	}
}

func TestHeadOfWorktreesAndSubmodules(t *testing.T) {
	testkit.Need(t, "git")
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "main")
	first := commit(t, dir)

	git(t, dir, "worktree", "add", "-q", "-b", "other", "wt")
	second := commit(t, filepath.Join(dir, "wt"))
	want(t, dir, first)
	wantNone(t, filepath.Join(dir, "wt")) // its repository is outside of it

	// A repository whose folder stands elsewhere in the workspace, named both ways.
	for _, gitdir := range []string{"meta/repo", filepath.Join(dir, "sep/meta/repo")} {
		sep := filepath.Join(dir, "sep")
		put(t, sep, "meta/note", "")
		git(t, dir, "init", "-q", "-b", "main", "--separate-git-dir="+filepath.Join(sep, "meta/repo"), sep)
		sha := commit(t, sep)
		put(t, sep, ".git", "gitdir: "+gitdir+"\n")
		want(t, sep, sha)
		if err := os.RemoveAll(sep); err != nil {
			t.Fatal(err)
		}
	}

	// A worktree's folder whose repository is in the workspace: HEAD its own, branches shared.
	if err := os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, "keep")); err != nil {
		t.Fatal(err)
	}
	put(t, dir, ".git", "gitdir: keep/worktrees/wt\n")
	want(t, dir, second)
	git(t, filepath.Join(dir, "keep"), "pack-refs", "--all")
	want(t, dir, second)
}

func put(t *testing.T, dir, rel, text string) {
	t.Helper()
	p := filepath.Join(dir, rel)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

const sha = "0123456789abcdef0123456789abcdef01234567"

func TestHeadReadsLikeGit(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, ".git/HEAD", strings.ToUpper(sha)+"\nmore")
	want(t, dir, sha)
	put(t, dir, ".git/HEAD", "ref:   refs/heads/a  \n")
	put(t, dir, ".git/packed-refs", "# pack-refs with: peeled fully-peeled sorted\n"+strings.Repeat("f", 40)+" refs/heads/aa\n"+sha+" refs/heads/a\n^"+strings.Repeat("e", 40)+"\n")
	want(t, dir, sha)
}

func TestHeadOfJunkIsNone(t *testing.T) {
	outside := t.TempDir()
	put(t, outside, ".git/HEAD", sha+"\n")
	put(t, outside, "ref", sha+"\n")
	tests := map[string]func(dir string){
		"no repository":      func(dir string) {},
		"empty HEAD":         func(dir string) { put(t, dir, ".git/HEAD", "") },
		"short digest":       func(dir string) { put(t, dir, ".git/HEAD", sha[:39]) },
		"not hex":            func(dir string) { put(t, dir, ".git/HEAD", "z"+sha[1:]) },
		"zero digest":        func(dir string) { put(t, dir, ".git/HEAD", strings.Repeat("0", 40)) },
		"too long":           func(dir string) { put(t, dir, ".git/HEAD", sha+strings.Repeat(" ", maxRef)) },
		"reftable":           func(dir string) { put(t, dir, ".git/HEAD", "ref: refs/heads/.invalid\n") },
		"ref that climbs":    func(dir string) { put(t, dir, ".git/HEAD", "ref: refs/../../ref"); put(t, dir, "ref", sha) },
		"ref that isn't one": func(dir string) { put(t, dir, ".git/HEAD", "ref: config"); put(t, dir, ".git/config", sha) },
		"loop":               func(dir string) { put(t, dir, ".git/HEAD", "ref: refs/a"); put(t, dir, ".git/refs/a", "ref: refs/a") },
		"HEAD is a folder":   func(dir string) { put(t, dir, ".git/HEAD/x", sha) },
		"gitdir outside":     func(dir string) { put(t, dir, ".git", "gitdir: "+outside+"/.git") },
		"gitdir climbs":      func(dir string) { put(t, dir, ".git", "gitdir: ../"+filepath.Base(outside)+"/.git") },
		"gitdir of nothing":  func(dir string) { put(t, dir, ".git", "gitdir:") },
		"a file":             func(dir string) { put(t, dir, ".git", sha) },
		"commondir outside": func(dir string) {
			put(t, dir, ".git/HEAD", "ref: refs/x")
			put(t, dir, ".git/commondir", outside)
		},
		"linked repository": func(dir string) { link(t, outside+"/.git", dir+"/.git") },
		"linked HEAD": func(dir string) {
			put(t, dir, ".git/config", "")
			link(t, outside+"/ref", dir+"/.git/HEAD")
		},
		"HEAD is a fifo": func(dir string) {
			put(t, dir, ".git/config", "")
			if err := unix.Mkfifo(dir+"/.git/HEAD", 0o600); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, build := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			build(dir)
			wantNone(t, dir)
		})
	}
}

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}
