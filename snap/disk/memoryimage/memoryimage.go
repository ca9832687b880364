// Package memoryimage reads and rewrites the header of the files in which libvirt's QEMU driver saves a guest's memory. The header
// has the definition of the domain, and libvirt refuses to resume the memory as another domain than the one that is named there.
//
// The file begins with a fixed part of 92 bytes in the byte order of the host (struct _virQEMUSaveHeader of libvirt's
// src/qemu/qemu_saveimage.h, version 2): 16 bytes of magic, then 19 numbers of 32 bits. The data follow: the definition, which ends
// with a zero byte, then at CookieOffset, if that is not 0, a text that ends with a zero byte as well, then zeros. QEMU's stream
// follows the data.
package memoryimage

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
)

const (
	magic      = "LibvirtQemudSave"
	version    = 2
	headerSize = len(magic) + 19*4
	maxData    = 16 << 20 // of a definition and a cookie, in bytes: real ones have some KiB
	// block is what a rewritten header's size changes by multiples of, so that the blocks of QEMU's stream can be shared by both files
	// where the filesystem can do that.
	block = 4096
)

// The numbers of the fixed part that are used, by their index.
const (
	atVersion = iota
	atDataLength
	atRunning
	atFormat
	atCookie
)

// formats is how many ways of compressing QEMU's stream are known, counted from 0: none, gzip, bzip2, xz, lzop, zstd. A newer libvirt
// has a format in which the stream must be at a fixed place of the file.
const formats = 6

// Header is the part of a memory image before QEMU's stream.
type Header struct {
	// Definition is the domain's definition.
	Definition string
	// cookie is what else libvirt wants to know of the domain; nil: nothing.
	cookie []byte
	fixed  [headerSize]byte
	end    int64 // where QEMU's stream begins
}

func (h *Header) number(i int) uint32 {
	return binary.NativeEndian.Uint32(h.fixed[len(magic)+4*i:])
}

func (h *Header) put(i int, v uint32) {
	binary.NativeEndian.PutUint32(h.fixed[len(magic)+4*i:], v)
}

func unknown(format string, args ...any) error {
	return errs.New(errs.Unsupported, "read a memory image", format, args...).
		WithHint("this libvirt writes images of another form: fork from a checkpoint without memory")
}

// Read reads the header of a memory image.
func Read(r io.Reader) (*Header, error) {
	h := &Header{}
	if _, err := io.ReadFull(r, h.fixed[:]); err != nil {
		return nil, unknown("the image has no whole header: %v", err)
	}
	size, cookie := int(h.number(atDataLength)), int(h.number(atCookie))
	switch {
	case string(h.fixed[:len(magic)]) != magic:
		return nil, unknown("the image does not begin with %s", magic)
	case h.number(atVersion) != version:
		return nil, unknown("the image has version %d, and %d is known", h.number(atVersion), version)
	case h.number(atFormat) >= formats:
		return nil, unknown("the image has format %d, which is not known", h.number(atFormat))
	case size > maxData:
		return nil, unknown("the image has a header of %d bytes", size)
	case cookie > size:
		return nil, unknown("the header's parts lie outside of it")
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, unknown("the image ends within its header: %v", err)
	}
	h.end = int64(headerSize + size)
	first := data
	if cookie != 0 {
		first = data[:cookie]
		text, _, ok := bytes.Cut(data[cookie:], []byte{0})
		if !ok {
			return nil, unknown("the second part of the header has no end")
		}
		h.cookie = text
	}
	text, _, ok := bytes.Cut(first, []byte{0})
	if !ok || len(text) == 0 {
		return nil, unknown("the definition in the header has no end")
	}
	h.Definition = string(text)
	return h, nil
}

// encode returns the header with another definition, padded with zeros to the size of the old one, or to that and some blocks more.
func (h *Header) encode(definition string) []byte {
	next := *h
	data := append([]byte(definition), 0)
	next.put(atCookie, 0)
	if h.cookie != nil {
		next.put(atCookie, uint32(len(data)))
		data = append(append(data, h.cookie...), 0)
	}
	size := int(h.end) - headerSize
	for size < len(data) {
		size += block
	}
	data = append(data, make([]byte, size-len(data))...)
	next.put(atDataLength, uint32(size))
	return append(next.fixed[:], data...)
}

// Copy makes the new file to with the memory image at from and another definition. The two files share the blocks of the memory if the
// filesystem can do that; otherwise the memory is copied.
func Copy(ctx context.Context, from, to string, definition func(string) (string, error)) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() // only read
	h, err := Read(in)
	if err != nil {
		return err
	}
	text, err := definition(h.Definition)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) // never overwrites a file
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Sync(), out.Close()) }()
	head := h.encode(text)
	if _, err := out.Write(head); err != nil {
		return err
	}
	// Whole blocks can be shared from the next boundary on.
	pad := -h.end & (block - 1)
	if _, err := in.Seek(h.end, io.SeekStart); err != nil {
		return err
	}
	if _, err := io.CopyN(out, in, pad); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	rest := unix.FileCloneRange{Src_fd: int64(in.Fd()), Src_offset: uint64(h.end + pad), Dest_offset: uint64(int64(len(head)) + pad)}
	if err := unix.IoctlFileCloneRange(int(out.Fd()), &rest); err == nil {
		return nil
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, imagefile.NewReader(ctx, in), make([]byte, 1<<20))
	return err
}
