package files

import (
	"context"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/ipc/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
)

var _ snap.Opener = (*Driver)(nil)

// OpenPath opens a regular file of a snapshot, or of the workspace when id is
// empty, and gives its size in bytes.
func (d *Driver) OpenPath(ctx context.Context, id snap.SnapshotID, path string) (io.ReadCloser, int64, error) {
	const op = "open file"
	if !validPath(path) {
		return nil, 0, errs.New(errs.Invalid, op, "%q is no path in the workspace", path)
	}
	if d.exclude.covers(path) {
		return nil, 0, d.noFile(op, path)
	}
	if id == "" {
		return d.openLive(op, path)
	}
	m, err := d.stored(ctx, op, id)
	if err != nil {
		return nil, 0, err
	}
	e, err := m.findFor(d.cfg.Reader, path)
	if err != nil {
		return nil, 0, errs.Wrap(errs.Failed, op, err)
	}
	if e == nil || !e.isFile() {
		return nil, 0, d.noFile(op, path)
	}
	return d.stream(*e), e.size, nil
}

// covers reports whether the file path is left out, or a folder above it is.
func (x *excluder) covers(path string) bool {
	for i := range len(path) {
		if path[i] == '/' && x.excludes(path[:i], true) {
			return true
		}
	}
	return x.excludes(path, false)
}

func (d *Driver) noFile(op, path string) error {
	return errs.New(errs.NotFound, op, "%s is no file there", shown(d.cfg.Dir, path))
}

func (d *Driver) openLive(op, path string) (io.ReadCloser, int64, error) {
	root, err := d.open()
	if err != nil {
		return nil, 0, err
	}
	defer root.Close()
	f, err := root.OpenFile(path, unix.O_RDONLY, 0)
	if err != nil {
		if os.IsPermission(err) {
			return nil, 0, errs.Wrap(errs.Denied, op, err)
		}
		return nil, 0, d.noFile(op, path)
	}
	st, err := statAt(int(f.Fd()), "")
	if err == nil && st.kind() == unix.S_IFREG {
		err = d.checkLive(root, path, st)
	} else {
		err = d.noFile(op, path)
	}
	if err != nil {
		f.Close()
		return nil, 0, errs.Wrap(errs.Failed, op, err)
	}
	return f, st.size, nil
}

// mayRead reports whether reader may read a file, or look up names in a folder, by
// its owner and mode. Groups are passed over, to be on the safe side.
func mayRead(reader int, uid, mode uint32) bool {
	bit := uint32(4)
	if mode&unix.S_IFMT == unix.S_IFDIR {
		bit = 1
	}
	if int(uid) == reader {
		return mode&(bit<<6) != 0
	}
	return reader == 0 || mode&bit != 0
}

func notReadable(path string) error {
	return errs.New(errs.Denied, "", "%q is not for the app's owner to read", path).WithHint("ask root, whose it is to show")
}

// findFor is find for a reader who may not look everywhere.
func (m *manifest) findFor(reader int, path string) (*entry, error) {
	for i := range len(path) + 1 {
		if reader == 0 || i == 0 || i < len(path) && path[i] != '/' {
			continue
		}
		e, err := m.find(path[:i])
		if err != nil || e == nil {
			return nil, err
		}
		if !mayRead(reader, e.uid, e.mode) {
			return nil, notReadable(path)
		}
	}
	return m.find(path)
}

// checkLive makes sure that the reader may read a file of the workspace that was
// opened by path: the file, and every folder on the way to this very file.
func (d *Driver) checkLive(root *beneath.Root, path string, st stat) error {
	if d.cfg.Reader == 0 {
		return nil
	}
	if !mayRead(d.cfg.Reader, st.uid, st.mode) {
		return notReadable(path)
	}
	dir := root
	for i := range len(path) {
		if path[i] != '/' {
			continue
		}
		next, err := dir.OpenDir(path[strings.LastIndexByte(path[:i], '/')+1 : i])
		if err != nil {
			return notReadable(path)
		}
		defer next.Close()
		in, err := statAt(next.FD(), "")
		if err != nil || !mayRead(d.cfg.Reader, in.uid, in.mode) {
			return notReadable(path)
		}
		dir = next
	}
	// The folders that were looked at must be those that lead to the file.
	last, err := dir.OpenFile(path[strings.LastIndexByte(path, '/')+1:], unix.O_PATH, 0)
	if err != nil {
		return notReadable(path)
	}
	defer last.Close()
	if again, err := statAt(int(last.Fd()), ""); err != nil || again.id != st.id {
		return notReadable(path)
	}
	return nil
}

// stream reads a stored content, its holes as zeros.
func (d *Driver) stream(e entry) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		at := int64(0)
		fill := func(to int64) error {
			for at < to {
				n, err := w.Write(zeros[:min(int64(len(zeros)), to-at)])
				at += int64(n)
				if err != nil {
					return err
				}
			}
			return nil
		}
		err := eachPiece(d.cfg.Store, &e, func(off int64, p []byte) error {
			if err := fill(off); err != nil {
				return err
			}
			n, err := w.Write(p)
			at += int64(n)
			return err
		})
		if err == nil {
			err = fill(e.size)
		}
		w.CloseWithError(err) // of nil: io.EOF
	}()
	return r
}
