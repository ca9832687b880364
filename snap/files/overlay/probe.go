package overlay

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/walk"
)

// probe mounts a workspace over a copy with two files, and checks what the files driver relies on. Afterwards, the copy is empty again. dir is the
// folder of the copy: root alone may enter it, so paths below are what they seem to be.
func probe(pinned string, dir *beneath.Root) (err error) {
	m := Mount{Pinned: pinned, Name: "probe", At: filepath.Join(pinned, "tried"), Fresh: true}
	at := filepath.Join(inode.ProcPath(dir.FD()), "tried")
	base := filepath.Join(inode.ProcPath(dir.FD()), baseName)
	a, b, d := filepath.Join(base, "a"), filepath.Join(base, "b"), filepath.Join(base, "d")
	defer func() {
		err = errs.Also(err, m.Remove())
		for _, p := range []string{at, a, b, d} {
			if e := os.Remove(p); !errors.Is(e, os.ErrNotExist) {
				err = errs.Also(err, e)
			}
		}
	}()
	if err := errors.Join(os.Mkdir(at, 0o700), os.Mkdir(d, 0o700), os.WriteFile(a, []byte("one"), 0o600), os.Link(a, b)); err != nil {
		return err
	}
	if err := m.Ensure(); err != nil {
		return err
	}
	return tryMounted(base, at)
}

// tryMounted checks that a file keeps its number when it is first written to and after, that it keeps its two names, that a program that has it
// mapped is found by that number, and that a folder can be renamed.
func tryMounted(base, at string) error {
	below, err := inode.StatAt(unix.AT_FDCWD, filepath.Join(base, "a"))
	if err != nil {
		return err
	}
	before, err := inode.StatAt(unix.AT_FDCWD, filepath.Join(at, "a"))
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(at, "b"), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close() // what was written is not needed
	if _, err := f.WriteString("two"); err != nil {
		return err
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	found := walk.MappedToWrite(before.ID.Dev)[before.ID.Ino]
	if err := unix.Munmap(mapped); err != nil {
		return os.NewSyscallError("munmap", err)
	}
	after, err := inode.StatAt(unix.AT_FDCWD, filepath.Join(at, "a"))
	switch {
	case err != nil:
		return err
	case before.ID.Ino != below.ID.Ino || after.ID != before.ID || before.Mtime != below.Mtime || before.Ctime != below.Ctime || before.ID.Dev == below.ID.Dev:
		return errors.New("files change their numbers or times")
	case after.Nlink != 2 || after.Size != int64(len("onetwo")):
		return errors.New("files with several names are split")
	case !found:
		return errors.New("programs that have a file mapped are not found")
	}
	return os.Rename(filepath.Join(at, "d"), filepath.Join(at, "e"))
}
