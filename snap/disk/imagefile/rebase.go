package imagefile

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
)

// MinFree is the space in bytes that must be free on a pool's filesystem for a new overlay, to which the guest will write.
const MinFree = 64 << 20

// MakeRoom says what to do when the space is not there.
const MakeRoom = "make room, or delete checkpoints: `mulligan prune`"

// MergeSuffix marks the file that will replace an image. A random part follows it: a program that a daemon started survives the
// daemon's death, and must not write to the file of the next daemon.
const MergeSuffix = ".merge-"

// Corrupt returns the error for damage of stored files.
func Corrupt(op, format string, args ...any) error {
	return errs.New(errs.Corrupt, op, format, args...).
		WithHint("checkpoints that do not need it can be restored: `mulligan verify` finds them")
}

// RestsOn checks that a file is a qcow2 image and that its backing file is below; "" means none.
func RestsOn(op, path, below string) error {
	img, f, err := OpenImage(path)
	if err != nil {
		return Corrupt(op, "%v", err)
	}
	f.Close() // only read
	if img.Backing != below {
		return Corrupt(op, "%s rests on %q, and should on %s", path, img.Backing, below)
	}
	return nil
}

// Rebased writes to temp a copy of the image at path whose backing file is parent and which reads the same, and returns its
// hash. It only reads the original. at is called before each step, for tests.
func Rebased(ctx context.Context, op, path, temp, parent string, at func(step string) error) (string, error) {
	if err := at("copy"); err != nil {
		return "", err
	}
	if err := CopyFile(ctx, path, temp); err != nil {
		return "", err
	}
	if err := at("rebase"); err != nil {
		return "", err
	}
	if err := Rebase(ctx, temp, parent); err != nil {
		return "", err
	}
	if err := at("compare"); err != nil {
		return "", err
	}
	if _, err := Run(ctx, "qemu-img", "compare", "-q", "-U", "-f", "qcow2", "-F", "qcow2", path, temp); err != nil {
		return "", errs.Wrap(errs.Corrupt, op, err)
	}
	// The contents would also be equal if the backing file of temp were still the one that will be removed.
	if err := RestsOn(op, temp, parent); err != nil {
		return "", err
	}
	if err := ChownLike(temp, path); err != nil {
		return "", err
	}
	if err := errors.Join(durable.Sync(temp), durable.Sync(filepath.Dir(temp))); err != nil {
		return "", err
	}
	return HashFile(ctx, temp)
}

// Replace replaces bottom, which is no backing file of another image, by a full copy of top without a backing file.
func Replace(ctx context.Context, op, top, bottom string) error {
	temp := filepath.Join(filepath.Dir(top), filepath.Base(top)+MergeSuffix+Random()) // Sweep removes such files
	if err := Enough(op, filepath.Dir(top), Blocks(top)+MinFree); err != nil {
		return err
	}
	if _, err := Run(ctx, "qemu-img", "convert", "-f", "qcow2", "-O", "qcow2", top, temp); err != nil {
		return errors.Join(err, Remove(temp))
	}
	err := errors.Join(SameContent(ctx, op, top, temp), ChownLike(temp, top), durable.Sync(temp))
	if err == nil {
		err = os.Rename(temp, bottom)
	}
	if err != nil {
		return errors.Join(err, Remove(temp))
	}
	return durable.Sync(filepath.Dir(bottom))
}

// SameContent compares two images, as a guest would read them.
func SameContent(ctx context.Context, op, a, b string) error {
	if _, err := Run(ctx, "qemu-img", "compare", "-q", "-f", "qcow2", "-F", "qcow2", a, b); err != nil {
		return errs.Wrap(errs.Corrupt, op, err)
	}
	return durable.Sync(b)
}

// Enough returns an error if less than need bytes are free on the filesystem of dir.
func Enough(op, dir string, need int64) error {
	free, err := FreeBytes(dir)
	if err == nil && free < need {
		err = errs.New(errs.Failed, op, "no space left: %d MiB are needed in %s, %d are there", need>>20, dir, free>>20).WithHint(MakeRoom)
	}
	return err
}

// EnoughFor returns an error if a filesystem has no room for files that are to be made in it, beside MinFree. need has their sizes
// in bytes, by path.
func EnoughFor(op string, need map[string]int64) error {
	dirs, sums := map[uint64]string{}, map[uint64]int64{}
	for path, n := range need {
		dir := filepath.Dir(path)
		var s unix.Stat_t
		if err := unix.Stat(dir, &s); err != nil {
			return &os.PathError{Op: "stat", Path: dir, Err: err}
		}
		dirs[s.Dev], sums[s.Dev] = dir, sums[s.Dev]+n
	}
	for disk, dir := range dirs {
		if err := Enough(op, dir, sums[disk]+MinFree); err != nil {
			return err
		}
	}
	return nil
}

// Random returns a part of a file name that no earlier file has.
func Random() string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
