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
	"path/filepath"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// StatOf returns the stat of a file.
func StatOf(path string) (Stat, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return Stat{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return Stat{Size: s.Size, MTime: s.Mtim.Nano(), CTime: s.Ctim.Nano(), Inode: s.Ino}, nil
}

// Blocks returns the bytes that a file occupies on disk; 0 if the file does not exist.
func Blocks(path string) int64 {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return 0
	}
	return s.Blocks * 512
}

// HashFile returns the BLAKE3 hash of a file's contents, in hex.
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

// NewReader returns a reader of f that returns an error when ctx has ended.
func NewReader(ctx context.Context, f *os.File) io.Reader { return reader{ctx, f} }

// reader is what NewReader returns.
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

// SetImmutable sets or clears the immutable flag of a file. With the flag, nobody, root and QEMU included, can open the file
// for writing, rename or remove it. It does nothing on filesystems without the flag, and if the flag is cleared for a file that
// does not exist.
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
		return nil // the filesystem has no such flags
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
		return nil // an ordinary user may not set the flag; the hashes detect changes anyway
	}
	if err != nil {
		return fmt.Errorf("make %s immutable (%t): %w", path, on, err)
	}
	return nil
}

// Remove removes a file, which may be immutable or missing.
func Remove(path string) error {
	if err := SetImmutable(path, false); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// CopyFile copies a file, with reflinks if the filesystem supports them. Holes stay holes.
func CopyFile(ctx context.Context, from, to string) error {
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_, err := Run(ctx, "cp", "--reflink=auto", "--sparse=always", "--", from, to)
	return err
}

// ChownLike sets the owner of a file to that of another file.
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

// Run runs a program and returns its output. The error of a failure has the last line of it.
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

// FreeBytes returns the free space of a folder's filesystem, in bytes.
func FreeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// qemuWriteByte is the offset of the byte of an image that QEMU locks while it may write to the image: RAID_PERM_BASE (100)
// plus the bit of BLK_PERM_WRITE, in QEMU's block/file-posix.c.
const qemuWriteByte = 101

// HasWriter reports whether a process has locked the image for writing, according to the kernel.
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

// Stat has the fields that show whether a file may have changed.
type Stat struct {
	Size, MTime, CTime int64
	Inode              uint64
}

// Exists reports whether a path exists. It returns false if that cannot be determined.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Deleted reports whether a file was deleted: its folder is there, and does not have it. A file on a filesystem that is not mounted,
// or does not answer, was not.
func Deleted(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist) && Exists(filepath.Dir(path))
}

// ImageSize returns the size of the disk in the image at path, in bytes.
func ImageSize(path string) (int64, error) {
	img, f, err := OpenImage(path)
	if err != nil {
		return 0, err
	}
	return img.Size, f.Close()
}

// Rebase changes the backing file of the image at path to parent, or removes it if parent is "". The data that are read from
// the image stay the same.
func Rebase(ctx context.Context, path, parent string) error {
	args := []string{"rebase", "-f", "qcow2", "-b", parent}
	if parent != "" {
		args = append(args, "-F", "qcow2")
	}
	_, err := Run(ctx, "qemu-img", append(args, path)...)
	return err
}

// SetBacking names another backing file in the header of the image at path. The data that are read from the two backing files must be
// the same.
func SetBacking(ctx context.Context, path, backing string) error {
	_, err := Run(ctx, "qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", backing, path)
	return err
}

// maxNVRAM bounds, in bytes, an NVRAM, which is read into memory. QEMU's have at most some MiB.
const maxNVRAM = 64 << 20

// openNVRAM opens an NVRAM. Its path is what a domain's definition says, and somebody may have put something else there: openNVRAM follows no link at the
// path's end, waits for nobody at the other end of a pipe, and refuses what is no plain file.
func openNVRAM(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil && !errors.Is(err, unix.ELOOP) {
		return nil, err
	}
	if err == nil {
		s, err := f.Stat()
		if err == nil && s.Mode().IsRegular() {
			return f, nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return nil, errs.New(errs.Denied, "", "the NVRAM %s is no plain file", path).WithHint("somebody has put something else in its place; put it back, or remove it while the domain is off")
}

// ReadNVRAM reads an NVRAM, or a copy of one.
func ReadNVRAM(path string) ([]byte, error) {
	f, err := openNVRAM(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxNVRAM+1))
	if err == nil && len(data) > maxNVRAM {
		err = errs.New(errs.Unsupported, "", "the NVRAM %s has more than %d MiB", path, maxNVRAM>>20).WithHint("see what has filled it: none of a domain's is so large")
	}
	return data, err
}

// HashOrNone returns the hash of the NVRAM at path, or "" if there is no file or path is "".
func HashOrNone(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := ReadNVRAM(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return HashBytes(data), err
}

// Overwrite copies the NVRAM at from into that at path, which keeps its inode, owner and mode. The domain is
// off, and after a crash the copy is repeated.
func Overwrite(path, from string) error {
	data, err := ReadNVRAM(from)
	if err != nil {
		return err
	}
	f, err := openNVRAM(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	now, err := io.ReadAll(io.LimitReader(f, int64(len(data))+1))
	if err == nil && string(now) != string(data) {
		_, err = f.WriteAt(data, 0)
		err = errors.Join(err, f.Truncate(int64(len(data))))
	}
	return errors.Join(err, f.Sync(), f.Close())
}
