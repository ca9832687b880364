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

// ballastFile is a file in the state folder that reserves space on its disk. If the daemon cannot open its records because the disk is full,
// it uses a small part of this space, as a deletion does. A rollback uses all of it, for its records and its safety checkpoint.
const ballastFile = "ballast"

// ballastMost bounds the ballast, in bytes. It is at most a 16th of the disk.
const ballastMost = 16 << 20

// startRoom is the number of bytes of the ballast that a start uses. If that is too little, the next start adds as many. What fills the disk may
// take them each time, and the next rollback needs the rest.
const startRoom = 1 << 20

// fillBallast makes the ballast if there is much free space. It ignores errors.
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
	_ = unix.Fallocate(int(f.Fd()), 0, 0, size) // a filesystem without this call reserves no space
}

// GiveBallast frees the space of the ballast for a rollback if the disk has little other space left.
func (r *Records) GiveBallast() { r.giveBallast(2*Reserve, ballastMost) }

// GiveToDelete frees a part of the ballast for a deletion if the disk has no other space left; the next rollback may need the rest.
func (r *Records) GiveToDelete() { r.giveBallast(Reserve/4, Reserve) }

// giveBallast frees at most give bytes of the ballast if the disk has less than need bytes left. It reports whether there were any.
func (r *Records) giveBallast(need, give int64) bool {
	if free, err := r.free(); err != nil || free >= need {
		return false
	}
	path := filepath.Join(r.opt.StateDir, ballastFile)
	st, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, max(0, st.Size()-give))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.opt.Log.Warn("give up the ballast", "err", err)
	}
	return err == nil && st.Size() > 0
}

// errNoRoom is wrapped by the error of a disk that lacks space for an operation.
var errNoRoom = errors.New("no space")

// NoRoom reports whether err is that of a full disk.
func NoRoom(err error) bool {
	return StateFull(err) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// StateFull reports whether err is that of HasFree: the disk of the state folder is full.
func StateFull(err error) bool { return errors.Is(err, errNoRoom) }

// Reserve returns the number of bytes that the daemon's own records may need.
const Reserve = 4 << 20

// leave is the number of bytes that the content stores leave free: the reserve, and what they allocate ahead.
const leave = Reserve + 2<<20

// HasFree returns an error if the disk of the content stores lacks space for need bytes. It collects garbage first if
// necessary, because a failed capture may have filled the disk.
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

// free returns the free bytes on the disk of the content stores.
func (r *Records) free() (int64, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(r.opt.StateDir, &fs)
	return int64(fs.Bavail) * fs.Bsize, err
}
