package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// SQLite's locks are POSIX locks on bytes that hold no data: in the database
// file from the pending byte on (os.h, "File Locking"), and for WAL mode in the
// log's index (wal.c, "WAL-index"). The locks here are the same ones as OFD
// locks: they exclude the locks of other processes, and they go when this file
// is closed and not when any is.
const (
	reservedByte = pendingByte + 1
	sharedFirst  = pendingByte + 2
	sharedSize   = 510
	checkpointer = 121 // in the log's index: who holds it may copy pages to the database file
)

// lockedError says that a lock is held by somebody else.
type lockedError struct {
	path string
	pid  int // 0: not known
}

func (e *lockedError) Error() string {
	return fmt.Sprintf("%s is locked%s", e.path, by(e.pid))
}

// setLock takes or drops a lock on n bytes at start, and does not wait.
func setLock(f *os.File, kind int16, start, n int64) error {
	lock := unix.Flock_t{Type: kind, Start: start, Len: n}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		pid, err := lockHolder(f, kind, start, n)
		return errors.Join(&lockedError{f.Name(), pid}, err)
	}
	return err
}

// lockHolder is the process whose lock on the range excludes one of the given
// kind: 0 where there is none, -1 where the kernel does not know.
func lockHolder(f *os.File, kind int16, start, n int64) (int, error) {
	lock := unix.Flock_t{Type: kind, Start: start, Len: n}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return 0, err
	}
	if lock.Type == unix.F_UNLCK {
		return 0, nil
	}
	return int(lock.Pid), nil
}

// lockShared takes the lock of a reader. A writer that waits for readers to
// leave holds the pending byte, and is let past.
func lockShared(f *os.File) error {
	if err := setLock(f, unix.F_RDLCK, pendingByte, 1); err != nil {
		return err
	}
	err := setLock(f, unix.F_RDLCK, sharedFirst, sharedSize)
	return errors.Join(err, setLock(f, unix.F_UNLCK, pendingByte, 1))
}

// lockExclusive makes a reader's lock the lock of the only client. On failure
// the caller closes the file.
func lockExclusive(f *os.File) error {
	return setLock(f, unix.F_WRLCK, pendingByte, 2+sharedSize)
}

// retry calls try until it fails for another reason than a lock, or d has
// passed: then the error is of kind busy and names object and the holder.
func retry(ctx context.Context, d time.Duration, object string, try func() error) error {
	deadline := time.Now().Add(d)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return errs.Wrap(errs.Unavailable, "", err)
		}
		err := try()
		var locked *lockedError
		if err == nil || !errors.As(err, &locked) {
			return err
		}
		if time.Now().After(deadline) {
			return errs.New(errs.Busy, "", "database %s is in use%s", object, by(locked.pid)).
				WithHint("stop what uses it, or try again")
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
