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

// SQLite's locks are POSIX locks on bytes without data: in the database file from the pending byte on
// (os.h, "File Locking"), and in WAL mode in the log's index (wal.c, "WAL-index"). The locks here
// cover the same bytes as OFD locks: they exclude other processes' locks, and closing another
// descriptor of the file does not release them.
const (
	reservedByte = pendingByte + 1
	sharedFirst  = pendingByte + 2
	sharedSize   = 510
	checkpointer = 121 // in the log's index: its holder may copy pages to the database file
)

// lockedError says that another process holds a lock.
type lockedError struct {
	path string
	pid  int // 0: unknown
}

func (e *lockedError) Error() string {
	return fmt.Sprintf("%s is locked%s", e.path, by(e.pid))
}

// setLock takes or releases a lock on n bytes at start without waiting.
func setLock(f *os.File, kind int16, start, n int64) error {
	lock := unix.Flock_t{Type: kind, Start: start, Len: n}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		pid, err := lockHolder(f, kind, start, n)
		return errors.Join(&lockedError{f.Name(), pid}, err)
	}
	return err
}

// lockHolder returns the process whose lock on the range conflicts with one of the given kind: 0 if
// there is none, -1 if the kernel does not know.
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

// lockShared takes a reader's lock. It gives way to a writer, which holds the pending byte while it waits
// for readers to leave.
func lockShared(f *os.File) error {
	if err := setLock(f, unix.F_RDLCK, pendingByte, 1); err != nil {
		return err
	}
	err := setLock(f, unix.F_RDLCK, sharedFirst, sharedSize)
	return errors.Join(err, setLock(f, unix.F_UNLCK, pendingByte, 1))
}

// lockExclusive turns a reader's lock into an exclusive one. After an error the caller must close the
// file.
func lockExclusive(f *os.File) error {
	return setLock(f, unix.F_WRLCK, pendingByte, 2+sharedSize)
}

// retry calls try again while it fails because of a lock, for at most d. Then it returns an error of
// kind busy that names object and the lock's holder.
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
