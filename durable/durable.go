// Package durable writes files that survive a power cut, and locks files for one process.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// tempSuffix ends the name of the temporary file that WriteFile renames. A crash may leave such a file; the next WriteFile
// of the same path overwrites it.
const tempSuffix = ".tmp"

// WriteFile atomically replaces the file at path by one with the content data. When it returns nil, the new content survives a
// power cut. After an error or a crash, the file has either its complete old content or the complete data. WriteFile returns an
// error if a symbolic link or a fifo has the name of its temporary file. The caller must not write to the same path
// concurrently.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	temp := path + tempSuffix
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // if this fails, the next WriteFile overwrites the file
		return err
	}
	return Sync(filepath.Dir(path))
}

// Sync makes the content of the file at path durable. If path is a folder, it makes the names in it durable.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// lockWait is the time for which Lock waits. A process that was just killed may have a child that has not yet called exec: the
// child holds the lock until then.
const lockWait = 2 * time.Second

// Lock locks an open file or folder for this process (flock(2)) until f is closed. If another process has the lock, Lock waits
// for at most two seconds, and then returns unix.EWOULDBLOCK.
func Lock(f *os.File) error {
	for end := time.Now().Add(lockWait); ; time.Sleep(lockWait / 200) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}
