package records

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/cas"
)

// ballastFile is a file in the state folder that holds room on its disk. A rollback that
// finds the disk full is given that room, for its records and its safety checkpoint.
const ballastFile = "ballast"

// ballastMost bounds the ballast, in bytes. It is at most a 16th of the disk.
const ballastMost = 16 << 20

// fillBallast makes the ballast if there is plenty of room. What it cannot hold, it does not.
func (r *Records) fillBallast() {
	var disk unix.Statfs_t
	if unix.Statfs(r.opt.StateDir, &disk) != nil {
		return
	}
	size := min(ballastMost, int64(disk.Blocks)*disk.Bsize/16)
	f, err := os.OpenFile(filepath.Join(r.opt.StateDir, ballastFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close() // nothing is written to it
	st, err := f.Stat()
	if err != nil || st.Size() >= size || int64(disk.Bavail)*disk.Bsize < 4*size {
		return
	}
	_ = unix.Fallocate(int(f.Fd()), 0, 0, size) // a file system that cannot holds no room
}

// GiveBallast gives the ballast's room to whoever writes next, if there is no other.
func (r *Records) GiveBallast() {
	if free, err := r.free(); err != nil || free >= 2*Reserve {
		return
	}
	if err := os.Truncate(filepath.Join(r.opt.StateDir, ballastFile), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.opt.Log.Warn("give up the ballast", "err", err)
	}
}

// errNoRoom is in the error of a disk that lacks room for an operation.
var errNoRoom = errors.New("no space")

func NoRoom(err error) bool {
	return errors.Is(err, errNoRoom) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// Reserve is how many bytes the daemon's own records may need.
const Reserve = 4 << 20

// HasFree fails when the disk that the contents are stored on lacks room for need
// bytes, also once the garbage is gone: a capture that filled the disk may just have left it.
func (r *Records) HasFree(ctx context.Context, need int64) error {
	const op = "see what fits"
	free, err := r.free()
	if err == nil && free < need {
		if _, err := r.Contents.each(ctx, (*cas.Store).Collect); err != nil {
			r.opt.Log.Warn("garbage", "err", err)
		}
		free, err = r.free()
	}
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if free < need {
		return &errs.Error{Kind: errs.Failed, Op: op, Err: errNoRoom,
			Message: fmt.Sprintf("%s has %d MB free, and the checkpoint needs %d MB at the least", r.opt.StateDir, free>>20, need>>20),
			Hint:    "delete or unpin checkpoints, or make room; the app was not stopped"}
	}
	return nil
}

// free is how many bytes the disk that the contents are stored on has left.
func (r *Records) free() (int64, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(r.opt.StateDir, &fs)
	return int64(fs.Bavail) * fs.Bsize, err
}
