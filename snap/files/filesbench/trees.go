package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"mulligan/testkit"
)

//go:embed npm
var npm embed.FS

// sources are folders of real source code. Which versions they have is pinned, so that a tree is the same on each machine.
type sources struct {
	goroot  string   // Go's standard library
	modules string   // a node_modules; "" if npm could not install it
	own     []string // the Go modules that mulligan requires
	most    int      // number of bytes that are taken of each file; 0: all
}

func findSources(ctx context.Context) (s sources, err error) {
	if s.modules, err = nodeModules(ctx); err != nil {
		s.modules = ""
		fmt.Fprintln(os.Stderr, "filesbench: no node_modules in the trees:", err)
	}
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return s, fmt.Errorf("go env: %w", err)
	}
	s.goroot = filepath.Join(strings.TrimSpace(string(goroot)), "src")
	list, err := exec.CommandContext(ctx, "go", "mod", "download", "-json").Output()
	if err != nil {
		return s, fmt.Errorf("go mod download: %w", err)
	}
	for modules := json.NewDecoder(bytes.NewReader(list)); modules.More(); {
		var m struct{ Dir string }
		if err := modules.Decode(&m); err != nil {
			return s, fmt.Errorf("go mod download: %w", err)
		}
		s.own = append(s.own, m.Dir)
	}
	return s, nil
}

// folders returns the source folders for a tree of n files. A small tree uses only one.
func (s sources) folders(n int) []string {
	all := []string{s.goroot}
	if n <= 10_000 {
		return all
	}
	if s.modules != "" {
		all = append(all, s.modules)
	}
	return append(all, s.own...)
}

// nodeModules installs the packages of npm/package-lock.json once, in the cache for tests, and returns their folder.
func nodeModules(ctx context.Context) (string, error) {
	lock, err := npm.ReadFile("npm/package-lock.json")
	if err != nil {
		return "", err
	}
	dir, err := testkit.Kept(fmt.Sprintf("filesbench-%.12x", sha256.Sum256(lock)), func(dir string) error {
		pinned, err := fs.Sub(npm, "npm")
		if err == nil {
			err = os.CopyFS(dir, pinned)
		}
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			line, _, _ := strings.Cut(string(out), "\n")
			return fmt.Errorf("npm ci: %w: %s", err, line)
		}
		return nil
	})
	return filepath.Join(dir, "node_modules"), err
}

// tree is a tree of copied source files.
type tree struct {
	dir     string
	files   []string // paths of the regular files that are not empty
	folders int
	bytes   int64
	links   int
	rand    *rand.Rand
	most    int // see sources
}

func (t *tree) String() string {
	return fmt.Sprintf("%d files, %d folders, %d links, %.0f MB of real source trees", len(t.files), t.folders, t.links, float64(t.bytes)/1e6)
}

var errFull = errors.New("enough")

// plant copies n files from the sources. When the sources are used up, it copies them again, and adds a line to each file so
// that its content is new.
func plant(ctx context.Context, dir string, from sources, n int) (*tree, error) {
	t := &tree{dir: dir, rand: rand.New(rand.NewPCG(1, 2)), most: from.most}
	folders := from.folders(n)
	for round := 0; len(t.files) < n; round++ {
		before := len(t.files)
		for i, src := range folders {
			to := fmt.Sprintf("part%d", i+len(folders)*round)
			if err := t.graft(ctx, src, to, round, n); err != nil {
				return nil, err
			}
		}
		if len(t.files) == before {
			return nil, errors.New("the source trees are empty")
		}
	}
	return t, nil
}

// graft copies the source src until the tree has n files.
func (t *tree) graft(ctx context.Context, src, to string, round, n int) error {
	err := filepath.WalkDir(src, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case len(t.files) >= n:
			return errFull
		case e.Name() == ".git":
			return fs.SkipDir // git cannot add the files of a nested repository
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		return t.copy(path, filepath.Join(to, rel), e, round)
	})
	if errors.Is(err, errFull) {
		return nil
	}
	return err
}

func (t *tree) copy(from, rel string, e fs.DirEntry, round int) error {
	at := filepath.Join(t.dir, rel)
	switch {
	case e.IsDir():
		t.folders++
		return os.MkdirAll(at, 0o755)
	case e.Type() == fs.ModeSymlink:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		t.links++
		return os.Symlink(target, at)
	case !e.Type().IsRegular():
		return nil
	}
	p, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if len(p) == 0 {
		return nil
	}
	if t.most > 0 {
		p = p[:min(len(p), t.most)]
	}
	if round > 0 {
		p = fmt.Appendf(p, "\n// copy %d\n", round)
	}
	info, err := e.Info()
	if err != nil {
		return err
	}
	t.files = append(t.files, rel)
	t.bytes += int64(len(p))
	return os.WriteFile(at, p, info.Mode().Perm()|0o200)
}

// edit changes n different files.
func (t *tree) edit(n int) error {
	seen := map[int]bool{}
	for len(seen) < n {
		i := t.rand.IntN(len(t.files))
		if seen[i] {
			continue
		}
		seen[i] = true
		f, err := os.OpenFile(filepath.Join(t.dir, t.files[i]), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(f, "\n// edit %d\n", t.rand.Uint64())
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// whole checks that no file of the tree is missing.
func (t *tree) whole() error {
	for _, rel := range t.files {
		if _, err := os.Lstat(filepath.Join(t.dir, rel)); err != nil {
			return fmt.Errorf("the tree is not whole any more: %w", err)
		}
	}
	return nil
}

// random creates a file of random bytes.
func (t *tree) random(name string, size int) error {
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return err
	}
	var p bytes.Buffer
	f, err := os.Create(filepath.Join(t.dir, name))
	if err != nil {
		return err
	}
	seed := rand.NewChaCha8([32]byte{7})
	for left := size; left > 0 && err == nil; left -= 1 << 20 {
		p.Reset()
		p.Grow(1 << 20)
		block := p.AvailableBuffer()[:min(left, 1<<20)]
		seed.Read(block)
		_, err = f.Write(block)
	}
	return errors.Join(err, f.Close())
}
