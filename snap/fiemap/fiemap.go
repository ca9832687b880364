// Package fiemap asks the kernel where on the disk the parts of a file are (FIEMAP, linux/fiemap.h).
package fiemap

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Extent is a part of a file that lies in one piece on the disk. All numbers are in bytes.
type Extent struct {
	Logical  uint64 // where it begins in the file
	Physical uint64 // where it begins on the disk, unless Flags say that it has no place of its own there
	Length   uint64
	Flags    uint32
}

// Flags of an extent.
const (
	Last      = 0x1
	Unwritten = 0x800 // it was allocated and never written: all zeros

	// Placeless are the flags of an extent that has no place on the disk: it is unknown, not allocated yet, or lies among the file's meta data.
	Placeless = 0x2 | 0x4 | 0x200
	// Inexact are the flags of an extent whose place does not say which bytes it has, because it is compressed, encrypted or not aligned, besides those in Placeless.
	Inexact = 0x8 | 0x80 | 0x100 | 0x400
)

const (
	call    = 0xC020660B // FS_IOC_FIEMAP
	sync    = 0x1
	perCall = 256
)

type request struct {
	Start, Length                  uint64
	Flags, Mapped, Count, Reserved uint32
	Extents                        [perCall]answer
}

type answer struct {
	Logical, Physical, Length uint64
	_                         [2]uint64
	Flags                     uint32
	_                         [3]uint32
}

// Each calls do for the extents of f, in the order of the file, until do returns false. With written, what was written to f is first brought to the disk, so that it has
// a place there. The error is one of the kernel's: a filesystem may not support the question (ENOTSUP, ENOTTY).
func Each(f *os.File, written bool, do func(Extent) bool) error {
	q := request{Length: ^uint64(0), Count: perCall}
	if written {
		q.Flags = sync
	}
	for {
		q.Mapped = 0
		_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), call, uintptr(unsafe.Pointer(&q)))
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return e
		}
		for _, a := range q.Extents[:q.Mapped] {
			if !do(Extent{a.Logical, a.Physical, a.Length, a.Flags}) || a.Flags&Last != 0 {
				return nil
			}
			q.Start = a.Logical + a.Length
		}
		if q.Mapped == 0 {
			return nil
		}
	}
}
