package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// inotify is one inotify queue (inotify(7)). fsnotify is not used here: it takes a folder's path, which
// the owner of a hostile tree can exchange for a link while the kernel resolves it, knows the
// watch by that path from then on, and cannot ask for the event of a file that is closed after
// writing, the only one that comes of stores through a shared mapping. Here a folder is watched by
// its descriptor, and known by the kernel's number of the watch. The kernel gives no number twice,
// until it has given two thousand million.
type inotify struct {
	fd     int
	file   *os.File
	events chan event
	failed chan error    // why reading ended; closed after that
	done   chan struct{} // closed by close
}

// event is one event of a watch. name is that of an entry of the folder; "" is the folder itself.
type event struct {
	watch int
	mask  uint32
	name  string
}

// The events of a watched folder, grouped by their meaning.
const (
	created = unix.IN_CREATE | unix.IN_MOVED_TO
	removed = unix.IN_DELETE | unix.IN_DELETE_SELF
	renamed = unix.IN_MOVED_FROM | unix.IN_MOVE_SELF
	chmod   = unix.IN_ATTRIB
	watched = created | removed | renamed | chmod | unix.IN_MODIFY | unix.IN_CLOSE_WRITE
)

func (e event) has(mask uint32) bool { return e.mask&mask != 0 }

// ahead bounds the events that are read from the kernel before they are handled.
const ahead = 4096

// newInotify opens a queue. The caller must close it.
func newInotify() (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	q := &inotify{fd: fd, file: os.NewFile(uintptr(fd), "inotify"), events: make(chan event, ahead),
		failed: make(chan error, 1), done: make(chan struct{})}
	go q.read()
	return q, nil
}

// add watches the open folder dir and returns the watch's number.
func (q *inotify) add(dir int) (int, error) {
	return unix.InotifyAddWatch(q.fd, fmt.Sprintf("/proc/self/fd/%d", dir), watched|unix.IN_ONLYDIR)
}

// remove ends a watch, unless it has ended with its folder.
func (q *inotify) remove(watch int) { _, _ = unix.InotifyRmWatch(q.fd, uint32(watch)) }

func (q *inotify) close() {
	if q != nil {
		close(q.done)
		_ = q.file.Close() // this ends read
	}
}

// read sends events until the queue is closed.
func (q *inotify) read() {
	defer close(q.failed)
	buf := make([]byte, 64<<10)
	for {
		n, err := q.file.Read(buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			q.failed <- err
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:size], []byte{0})
			e := event{int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:]), string(name)}
			select {
			case q.events <- e:
			case <-q.done:
				return
			}
			b = b[size:]
		}
	}
}
