package files

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// scramble does n random things to what is below dir, of every kind that a
// shell script could do. What cannot be done to a path is simply not done.
func scramble(t testing.TB, r *rand.Rand, dir string, n int) {
	t.Helper()
	linked := map[name]bool{}
	for range n {
		scrambleOnce(t, r, dir, linked)
	}
	stir(t, dir, linked)
}

// name is a path at which a file was.
type name struct {
	path string
	ino  uint64
}

// scrambleOnce does one random thing. It adds a file's further name to linked, if one came.
func scrambleOnce(t testing.TB, r *rand.Rand, dir string, linked map[name]bool) {
	t.Helper()
	files, folders := below(t, dir)
	fresh := fmt.Sprintf("%s/n%d", oneOf(r, dir, folders), r.IntN(1000))
	act(r, dir, oneOf(r, dir, files), oneOf(r, dir, folders), oneOf(r, dir, files), fresh)
	furtherName(fresh, linked)
}

// relinkOnce makes, moves or removes a name of a file. Few names serve for all, in two folders. It adds a file's further name to linked, if one came.
func relinkOnce(t testing.TB, r *rand.Rand, dir string, linked map[name]bool) {
	t.Helper()
	files, _ := below(t, dir)
	file := oneOf(r, dir, files)
	in := dir
	if r.IntN(3) == 0 {
		in += "/few"
	}
	fresh := fmt.Sprintf("%s/few%d", in, r.IntN(8))
	switch r.IntN(7) {
	case 0, 1:
		os.Remove(file)
	case 2, 3:
		os.Link(file, fresh)
	case 4:
		os.Rename(file, fresh)
	case 5:
		os.WriteFile(fresh, []byte("x"), 0o600)
	case 6:
		if os.Mkdir(dir+"/few", 0o755) != nil && os.Rename(dir+"/few", dir+"/away") == nil {
			os.Rename(dir+"/away", dir+"/few")
		}
	}
	furtherName(fresh, linked)
}

// below lists the files and folders in dir, which is one of the latter.
func below(t testing.TB, dir string) (files, folders []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			folders = append(folders, p)
		} else if err == nil {
			files = append(files, p)
		}
		return err
	}))
	return files, folders
}

func oneOf(r *rand.Rand, dir string, list []string) string {
	if len(list) == 0 {
		return dir + "/none"
	}
	return list[r.IntN(len(list))]
}

// furtherName adds the file at path to linked if it has a further name.
func furtherName(path string, linked map[name]bool) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil && st.Nlink > 1 && st.Mode&unix.S_IFMT == unix.S_IFREG {
		linked[name{path, st.Ino}] = true
	}
}

// stir gives an event to the names of files that had a further name for so short a time that
// nobody may have seen it: what was written through that name gave none to the others.
func stir(t testing.TB, dir string, linked map[name]bool) {
	t.Helper()
	gone := map[uint64]bool{}
	for n := range linked {
		var st unix.Stat_t
		if unix.Lstat(n.path, &st) != nil || st.Ino != n.ino {
			gone[n.ino] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	must(t, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(p, &st)
		}
		if err == nil && gone[st.Ino] && st.Mode&unix.S_IFMT == unix.S_IFREG {
			err = unix.Chmod(p, st.Mode&0o7777)
		}
		return err
	}))
}

func act(r *rand.Rand, dir, file, folder, other, fresh string) {
	inside := folder != dir
	switch r.IntN(16) {
	case 0, 1:
		overwrite(fresh, random(r, r.IntN(5000)), 0o600)
	case 2:
		overwrite(file, random(r, r.IntN(5000)), 0)
	case 3:
		if f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			f.WriteString("more")
			f.Close()
		}
	case 4:
		os.Remove(file)
	case 5:
		if inside {
			os.RemoveAll(folder)
		}
	case 6:
		os.Mkdir(fresh, 0o755)
	case 7:
		os.Rename(file, fresh)
	case 8:
		if inside {
			os.Rename(folder, fresh)
		}
	case 9:
		os.Chmod(file, fs.FileMode(r.IntN(512)))
	case 10:
		os.Chmod(folder, 0o700|fs.FileMode(r.IntN(64)))
	case 11:
		os.Symlink(other, fresh)
	case 12:
		os.Link(file, fresh)
	case 13:
		if inside && os.RemoveAll(folder) == nil {
			overwrite(folder, random(r, 100), 0o644)
		}
	case 14:
		if os.Remove(file) == nil {
			os.Mkdir(file, 0o755)
			overwrite(file+"/in", random(r, 100), 0o644)
		}
	case 15:
		os.Chtimes(file, time.Time{}, time.Unix(r.Int64N(1e9), r.Int64N(1e9)))
		unix.Setxattr(file, "user.note", random(r, 8), 0)
	}
}

func random(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// overwrite is os.WriteFile, but does not wait for a reader where a fifo lies at path.
func overwrite(path string, data []byte, mode fs.FileMode) {
	if f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, mode); err == nil {
		f.Write(data)
		f.Close()
	}
}
