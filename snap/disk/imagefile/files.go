package imagefile

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// statOf looks at a file.
func StatOf(path string) (Stat, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return Stat{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return Stat{Size: s.Size, MTime: s.Mtim.Nano(), CTime: s.Ctim.Nano(), Inode: s.Ino}, nil
}

// blocks is how many bytes a file takes on disk; 0 for one that is gone.
func Blocks(path string) int64 {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return 0
	}
	return s.Blocks * 512
}

// hashFile is the BLAKE3 of a file's bytes, in hex.
func HashFile(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() // only read
	h := blake3.New()
	if _, err := io.CopyBuffer(h, reader{ctx, f}, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// reader reads until ctx ends.
type reader struct {
	ctx context.Context
	f   *os.File
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.f.Read(p)
	measure(r.ctx, n)
	return n, err
}

// immutableFlag is FS_IMMUTABLE_FL of linux/fs.h.
const immutableFlag = 0x10

// setImmutable sets or clears the flag that keeps anybody, root and QEMU
// included, from opening a file for writing, renaming or unlinking it.
// Filesystems that don't know it are left alone. A file that is gone is not
// immutable.
func SetImmutable(path string, on bool) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) && !on {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // only read
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return nil // no such flags here
	}
	want := flags | immutableFlag
	if !on {
		want = flags &^ immutableFlag
	}
	if want == flags {
		return nil
	}
	err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, want)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) || (errors.Is(err, unix.EPERM) && on) {
		return nil // an ordinary user can't: the hashes tell all the same
	}
	if err != nil {
		return fmt.Errorf("make %s immutable (%t): %w", path, on, err)
	}
	return nil
}

// remove unlinks a file that may be immutable, or gone.
func Remove(path string) error {
	if err := SetImmutable(path, false); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// copyFile copies a file with reflinks where the filesystem has them, and its
// holes as holes.
func CopyFile(ctx context.Context, from, to string) error {
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_, err := Run(ctx, "cp", "--reflink=auto", "--sparse=always", "--", from, to)
	return err
}

// chownLike gives a file the owner of another.
func ChownLike(path, like string) error {
	var s unix.Stat_t
	if err := unix.Stat(like, &s); err != nil {
		return &os.PathError{Op: "stat", Path: like, Err: err}
	}
	if err := os.Chown(path, int(s.Uid), int(s.Gid)); err != nil && os.Geteuid() == 0 {
		return err
	}
	return nil
}

// run runs a program and gives what it prints; a failure carries its last line.
func Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errs.New(errs.Unsupported, "", "%s is not installed", name).WithHint("install it (Debian: qemu-utils)")
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(problem.String()), "\n")
		kind := errs.Failed
		e := errs.New(kind, "", "%s %s: %s", name, args[0], lines[len(lines)-1])
		e.Err = err
		return out.String(), e
	}
	return out.String(), nil
}

// freeBytes is how much room a folder's filesystem has for us.
func FreeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// qemuWriteByte is the byte of an image that QEMU holds locked while it may
// write to it: RAID_PERM_BASE (100) plus the bit of BLK_PERM_WRITE, in QEMU's
// block/file-posix.c.
const qemuWriteByte = 101

// hasWriter asks the kernel whether some process writes to the image.
func HasWriter(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // only read
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: qemuWriteByte, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("look for a lock on %s: %w", path, err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

func HashBytes(data []byte) string {
	sum := blake3.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// stat tells whether a file may have changed.
type Stat struct {
	Size, MTime, CTime int64
	Inode              uint64
}

// exists reports whether a path is there, as far as one can see.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// imageSize is the size of the disk that the image at path holds, in bytes.
func ImageSize(path string) (int64, error) {
	img, f, err := OpenImage(path)
	if err != nil {
		return 0, err
	}
	return img.Size, f.Close()
}

// Rebase puts the image at path on another, parent, or on none, and leaves what is read
// from it as it was.
func Rebase(ctx context.Context, path, parent string) error {
	args := []string{"rebase", "-f", "qcow2", "-b", parent}
	if parent != "" {
		args = append(args, "-F", "qcow2")
	}
	_, err := Run(ctx, "qemu-img", append(args, path)...)
	return err
}

// HashOrNone is the hash of the file at path, or "" where there is none. An empty path is of no file.
func HashOrNone(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return HashBytes(data), err
}

// Overwrite makes the file at path what the one at from is. It keeps the inode, and
// with it owner and mode: the domain is off, and a crash repeats it.
func Overwrite(path, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	now, err := io.ReadAll(f)
	if err == nil && string(now) != string(data) {
		_, err = f.WriteAt(data, 0)
		err = errors.Join(err, f.Truncate(int64(len(data))))
	}
	return errors.Join(err, f.Sync(), f.Close())
}
