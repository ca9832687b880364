// Package detect looks into a folder for what mulligan can protect of it: its git repository, SQLite files,
// databases named in .env files, and databases that a compose file serves. It only reads, with the rights of the user who
// runs mulligan init.
//
// Two parsers are small and mulligan's own, because the usual packages refuse a whole file for one line that they do not
// know: parseDotenv (not package godotenv, which also loses the order) and parseCompose (not package compose-go, which
// also follows the paths that a file names and makes the client a quarter larger).
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

// Findings is what detection found in a folder.
type Findings struct {
	Git         Repository
	Databases   []Database
	Project     Project
	Unprotected []string // one text for each thing that mulligan cannot protect
}

// Project is the compose project of a folder. Its name is "" if there is none, or all that it runs is databases among the findings.
type Project struct {
	Name    string
	File    string
	Volumes []string // those with names, except of databases among the findings
}

// Unit is the project as the unit of an app, "" if there is none.
func (p Project) Unit() string {
	if p.Name == "" {
		return ""
	}
	return "compose:" + p.Name
}

// Repository says where a folder's git repository is.
type Repository int

// The values of a Repository.
const (
	NoRepository      Repository = iota
	RepositoryInside             // the folder holds the whole repository
	RepositoryOutside            // the folder is a worktree or a submodule of a repository outside of it
)

// Database is a database that detection found, as init registers it.
type Database struct {
	ipc.Database
	Source string // the setting that names the database; "" if its file was found
	Inside bool   // it is reached in its container, so only together with the project
}

// Limits keep detection short, whatever the folder holds.
const (
	maxEntries   = 50_000
	maxDepth     = 10
	maxDatabases = 16
	maxEnvFile   = 1 << 20 // bytes
)

// skippedDirs names folders of installed or generated files, in which detection looks for no databases.
var skippedDirs = map[string]bool{
	".git": true, ".hg": true, ".svn": true, "node_modules": true, "vendor": true, ".venv": true, "venv": true,
	"__pycache__": true, ".tox": true, ".cache": true, ".next": true, "target": true, "site-packages": true,
}

// App looks for what mulligan can protect in the folder dir. App follows no
// symbolic links out of dir and opens only regular files.
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
	f.findServices(root, filepath.Base(dir))
	return f, nil
}

// findGit reports where the repository is: .git is the repository itself, or a file that names
// the repository's folder. The daemon examines the repository once the folder is an app.
func findGit(root *os.Root, dir string) Repository {
	fi, err := root.Lstat(".git")
	if err != nil {
		return NoRepository
	}
	if fi.IsDir() {
		return RepositoryInside
	}
	head, err := readHead(root, ".git", maxEnvFile)
	target, ok := strings.CutPrefix(string(head), "gitdir:")
	if target = strings.TrimSpace(target); err != nil || !ok {
		return RepositoryOutside
	}
	if filepath.IsAbs(target) {
		if target, err = filepath.Rel(dir, target); err != nil {
			return RepositoryOutside
		}
	}
	if filepath.IsLocal(target) {
		return RepositoryInside
	}
	return RepositoryOutside
}

// findSQLite adds the files below root that have SQLite's header.
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
		case d.IsDir() && ownState(root, path):
			return fs.SkipDir
		case d.IsDir() && path != "." && (skippedDirs[d.Name()] || strings.Count(path, "/") >= maxDepth):
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

// ownState reports whether a folder is one in which mulligan keeps its state.
func ownState(root *os.Root, path string) bool {
	_, err := root.Lstat(filepath.Join(path, "mulligan.db"))
	return err == nil
}

// isSQLite reports whether the file at path begins with SQLite's header string (SQLite file format, §1.3.1).
func isSQLite(root *os.Root, path string) bool {
	const magic = "SQLite format 3\x00"
	head, err := readHead(root, path, len(magic))
	return err == nil && string(head) == magic
}

// readHead reads the first n bytes of the regular file at path, or all of a shorter file. It does not
// follow a symbolic link at path, and never blocks on a pipe.
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

// addDatabase adds db to the findings unless its URL is there already. A name
// that is taken gets a number.
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
	f.Databases = append(f.Databases, Database{Database: db, Source: source})
}

// nameOf returns a name for the database file at path.
func nameOf(path string) string {
	base := filepath.Base(path)
	return cmp.Or(slugify(strings.TrimSuffix(base, filepath.Ext(base))), slugify(base), "db")
}

// Slug returns a slug made from the name of the folder dir.
func Slug(dir string) string {
	return cmp.Or(slugify(filepath.Base(dir)), "app")
}

// slugify keeps the ASCII letters and digits of name, in lower case. The result
// is short enough for a number to follow.
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
