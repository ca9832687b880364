package agents

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"mulligan/errs"
)

// settingsFile is a settings file as it was read.
type settingsFile struct {
	path   string // for people
	name   string // below the root, with links resolved
	exists bool
	text   string
	mode   os.FileMode
}

// maxSettings bounds a settings file, in bytes.
const maxSettings = 64 << 20

// readSettings reads a file below its root. It follows links within the root, because people link their dotfiles. It refuses a
// link that leads out of the root, and a file that belongs to another user. A link that is made meanwhile cannot lead out of
// the root either.
func readSettings(c Change) (settingsFile, error) {
	f := settingsFile{path: filepath.Join(c.Root, c.Path), name: c.Path, mode: c.Mode}
	root, err := os.OpenRoot(c.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, errs.Wrap(errs.Failed, opSettings, err)
	}
	defer root.Close()
	if f.name, err = unlink(c.Root, c.Path); err != nil {
		return f, about(f.path, err)
	}
	file, err := root.OpenFile(f.name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, nil
	case err != nil:
		return f, errs.Wrap(errs.Failed, opSettings, err)
	}
	defer file.Close()
	fi, err := file.Stat()
	if err != nil {
		return f, errs.Wrap(errs.Failed, opSettings, err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		return f, errs.New(errs.Invalid, opSettings, "%s is not a regular file", f.path).WithHint("move it away")
	case !ok || int(st.Uid) != os.Geteuid():
		return f, errs.New(errs.Denied, opSettings, "%s belongs to another user", f.path).WithHint("run this command as that user")
	case fi.Size() > maxSettings:
		return f, errs.New(errs.Invalid, opSettings, "%s is too large for a file of settings", f.path).WithHint("check that it is the right file")
	}
	text, err := io.ReadAll(file)
	f.exists, f.text, f.mode = true, string(text), fi.Mode().Perm()
	return f, errs.Wrap(errs.Failed, opSettings, err)
}

// unlink resolves the links in a name below the root at dir, of its folders and of the file itself.
func unlink(dir, name string) (string, error) {
	outside := errs.New(errs.Denied, opSettings, "it is a symbolic link that leads out of %s", dir).
		WithHint("edit the link's target yourself, or replace the link by a regular file")
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(real, name)
	for range 10 {
		if path, err = realFolder(path); err != nil {
			return "", outside
		}
		fi, err := os.Lstat(path)
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", err
		case err != nil || fi.Mode()&fs.ModeSymlink == 0:
			below, err := filepath.Rel(real, path)
			if err != nil || !filepath.IsLocal(below) {
				return "", outside
			}
			return below, nil
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", outside
}

// realFolder returns path with the links in its folder resolved, as far as the folder exists.
func realFolder(path string) (string, error) {
	dir, rest := filepath.Dir(path), filepath.Base(path)
	for {
		real, err := filepath.EvalSymlinks(dir)
		if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return filepath.Join(real, rest), err
		}
		dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest)
	}
}

// errChanged is why a file was not written: it is not as it was read. Agents write their settings too.
var errChanged = errors.New("the file was changed since")

// still returns an error unless the file is as it was read.
func (f settingsFile) still(c Change) error {
	now, err := readSettings(c)
	if err == nil && (now.exists != f.exists || now.text != f.text) {
		err = errChanged
	}
	return err
}

// writeSettings replaces a whole file, if it is as it was read, and keeps its mode.
func writeSettings(c Change, f settingsFile, text string) error {
	if err := os.MkdirAll(c.Root, 0o755); err != nil {
		return unwritten(err)
	}
	root, err := os.OpenRoot(c.Root)
	if err != nil {
		return unwritten(err)
	}
	defer root.Close()
	if err := root.MkdirAll(filepath.Dir(f.name), folderMode(c.Mode)); err != nil {
		return unwritten(err)
	}
	return unwritten(replace(root, f.name, []byte(text), f.mode, func() error { return f.still(c) }))
}

// unwritten returns the error for a file that could not be written because of err.
func unwritten(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		e := errs.New(errs.Denied, opSettings, "the folder of the file is not writable").
			WithHint("make the folder writable, or make the change yourself: --dry-run prints it")
		e.Err = err
		return e
	}
	return errs.Wrap(errs.Failed, opSettings, err)
}

// folderMode returns the mode of new folders for files with this mode.
func folderMode(mode os.FileMode) os.FileMode {
	if mode&0o044 == 0 {
		return 0o700
	}
	return 0o755
}

// replace writes a file beside name and renames it, durably, unless check, if there is one, returns an error at the last moment.
func replace(root *os.Root, name string, text []byte, mode os.FileMode, check func() error) (err error) {
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails
	tmp := filepath.Join(filepath.Dir(name), ".mulligan-"+hex.EncodeToString(b))
	file, err := root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(tmp) // the first error is returned
		}
	}()
	_, err = file.Write(text)
	if err == nil {
		err = file.Chmod(mode)
	}
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil && check != nil {
		err = check()
	}
	if err == nil {
		err = root.Rename(tmp, name)
	}
	if err != nil {
		return err
	}
	return syncFolder(root, filepath.Dir(name))
}

func syncFolder(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// missing lists the missing folders of the file below the root, outermost first.
func missing(c Change, f settingsFile) ([]string, error) {
	root, err := os.OpenRoot(c.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, opSettings, err)
	}
	defer root.Close()
	var made []string
	dir := filepath.Dir(f.name)
	for i := range len(dir) + 1 {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		if _, err := root.Lstat(dir[:i]); errors.Is(err, fs.ErrNotExist) {
			made = append(made, dir[:i])
		}
	}
	return made, nil
}

// removeSettings removes a file, if it is as it was read, and those folders that were made for it and are empty.
func removeSettings(c Change, f settingsFile, folders []string) error {
	root, err := os.OpenRoot(c.Root)
	if err != nil {
		return errs.Wrap(errs.Failed, opSettings, err)
	}
	defer root.Close()
	if err := f.still(c); err != nil {
		return err
	}
	if err := root.Remove(f.name); err != nil {
		return unwritten(err)
	}
	for i := len(folders) - 1; i >= 0; i-- {
		if filepath.IsLocal(folders[i]) && strings.HasPrefix(f.name, folders[i]+"/") {
			_ = root.Remove(folders[i]) // a folder that is not empty stays
		}
	}
	return nil
}
