// Package detect looks into a folder for what mulligan can protect of it: its git repository, SQLite files,
// databases named in .env files, and databases that a compose file serves. It only reads.
//
// The parser of .env files is mulligan's own. parseDotenv passes over a line that it cannot read and keeps the order,
// where package godotenv refuses the whole file and returns a map.
package detect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"mulligan/appfile"
	"mulligan/errs"
	"mulligan/ipc"
)

// Findings is what init sees in a folder.
type Findings struct {
	Git         Repository
	Databases   []Database
	Unprotected []string // what will not be protected, in whole sentences
}

// Repository is how a folder's git repository lies.
type Repository int

// The places of a repository.
const (
	NoRepository Repository = iota
	OwnRepository
	RepositoryElsewhere // the folder is a worktree or a submodule of one
)

// Database is a database that was found, as it would be registered.
type Database struct {
	ipc.Database
	Source string // where it was found, if that is not the database itself
}

// How far detection goes: it is a convenience, and the tree may be anything.
const (
	maxEntries   = 50_000
	maxDepth     = 10
	maxDatabases = 16
	maxEnvFile   = 1 << 20 // bytes
)

// skipped are folders of what others made: nobody's database lies there.
var skipped = map[string]bool{
	".git": true, ".hg": true, ".svn": true, "node_modules": true, "vendor": true, ".venv": true, "venv": true,
	"__pycache__": true, ".tox": true, ".cache": true, ".next": true, "target": true, "site-packages": true,
}

// App looks into the workspace dir. It follows no links out of it, and
// opens nothing that could make it wait.
func App(ctx context.Context, dir string) (Findings, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Findings{}, errs.Wrap(errs.Invalid, "init", err)
	}
	defer root.Close()
	var f Findings
	f.Git = findGit(root, dir)
	if err := f.findSQLite(ctx, root); err != nil {
		return Findings{}, err
	}
	f.findURLs(root, dir)
	f.findServices(root)
	return f, nil
}

// findGit looks whether .git is the repository, or the file that says where it is. The daemon
// looks more closely once the folder is an app.
func findGit(root *os.Root, dir string) Repository {
	fi, err := root.Lstat(".git")
	if err != nil {
		return NoRepository
	}
	if fi.IsDir() {
		return OwnRepository
	}
	head, err := readHead(root, ".git", maxEnvFile)
	target, ok := strings.CutPrefix(string(head), "gitdir:")
	if target = strings.TrimSpace(target); err != nil || !ok {
		return RepositoryElsewhere
	}
	if filepath.IsAbs(target) {
		if target, err = filepath.Rel(dir, target); err != nil {
			return RepositoryElsewhere
		}
	}
	if filepath.IsLocal(target) {
		return OwnRepository
	}
	return RepositoryElsewhere
}

// findSQLite walks the tree for files with SQLite's header.
func (f *Findings) findSQLite(ctx context.Context, root *os.Root) error {
	entries := 0
	return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		entries++
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			f.Unprotected = append(f.Unprotected, fmt.Sprintf("SQLite files below %s: it could not be read", path))
			return fs.SkipDir
		case entries > maxEntries:
			f.Unprotected = append(f.Unprotected, fmt.Sprintf("SQLite files were looked for among the first %d files only", maxEntries))
			return fs.SkipAll
		case d.IsDir() && path != "." && (skipped[d.Name()] || strings.Count(path, "/") >= maxDepth):
			return fs.SkipDir
		case !d.Type().IsRegular() || !isSQLite(root, path):
			return nil
		case len(f.Databases) == maxDatabases:
			f.Unprotected = append(f.Unprotected, fmt.Sprintf("there are more than %d SQLite files: %s and those after it are protected as plain files", maxDatabases, path))
			return fs.SkipAll
		}
		db, err := appfile.ParseDatabase(nameOf(path) + "=sqlite:" + path)
		if err != nil || !utf8.ValidString(path) {
			f.Unprotected = append(f.Unprotected, path+" is protected as a plain file: its name can't be written as a database's")
			return nil
		}
		f.addDatabase(db, "")
		return nil
	})
}

// isSQLite tells by the header string (SQLite file format, §1.3.1).
func isSQLite(root *os.Root, path string) bool {
	const magic = "SQLite format 3\x00"
	head, err := readHead(root, path, len(magic))
	return err == nil && string(head) == magic
}

// readHead reads the first n bytes of a regular file, or all of a shorter one.
func readHead(root *os.Root, path string, n int) ([]byte, error) {
	file, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if fi, err := file.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errs.New(errs.Invalid, "init", "%s is not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(file, int64(n)))
}

// addDatabase adds db under a name of its own, unless it is there already.
func (f *Findings) addDatabase(db ipc.Database, source string) {
	taken := map[string]bool{}
	for _, have := range f.Databases {
		if have.Driver == db.Driver && have.DSN == db.DSN {
			return
		}
		taken[have.Name] = true
	}
	name := db.Name
	for n := 2; taken[db.Name]; n++ {
		db.Name = fmt.Sprintf("%s-%d", name, n)
	}
	f.Databases = append(f.Databases, Database{db, source})
}

// nameOf makes a database's name of a file's path.
func nameOf(path string) string {
	base := filepath.Base(path)
	return cmp.Or(slugify(strings.TrimSuffix(base, filepath.Ext(base))), slugify(base), "db")
}

// Slug makes a slug of a folder's name.
func Slug(dir string) string {
	return cmp.Or(slugify(filepath.Base(dir)), "app")
}

// slugify keeps letters and digits of ASCII, in lower case. It leaves room for
// a number at the end.
func slugify(name string) string {
	slug := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	return strings.Trim(slug[:min(len(slug), 48)], "-")
}
