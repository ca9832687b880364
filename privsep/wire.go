package privsep

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// The daemon and a worker exchange messages over a stream socket. A message is a length of four bytes, and then as many bytes
// of JSON. Open files are sent together with the length.

// Limits of the bytes of a message, and of its open files.
const (
	maxReply = 64 << 20
	maxFiles = 4
)

// request asks a worker for a call. The first request of a connection names the user instead.
type request struct {
	User *User           `json:",omitempty"`
	Func string          `json:",omitempty"`
	Arg  json.RawMessage `json:",omitempty"`
}

// reply is the result of a call.
type reply struct {
	Result json.RawMessage `json:",omitempty"`
	Err    *wireError      `json:",omitempty"`
}

// wireError is an error in a reply. It has the parts by which callers decide: the kind, the hint and the kernel's error number.
type wireError struct {
	Kind    errs.Kind  `json:",omitempty"`
	Op      string     `json:",omitempty"`
	Message string     `json:",omitempty"`
	Hint    string     `json:",omitempty"`
	Cause   *wireError `json:",omitempty"`

	Text  string        `json:",omitempty"` // text of an error that is not an *errs.Error
	Errno syscall.Errno `json:",omitempty"`
	Timed bool          `json:",omitempty"` // the error is a timeout
}

func encodeError(err error) *wireError {
	if err == nil {
		return nil
	}
	if e, ok := err.(*errs.Error); ok { // only err itself: deeper ones become its Cause, or are found below
		return &wireError{Kind: e.Kind, Op: e.Op, Message: e.Message, Hint: e.Hint, Cause: encodeError(e.Err)}
	}
	w := &wireError{Text: err.Error(), Timed: errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)}
	if !errors.As(err, &w.Errno) {
		w.Errno = errnoOf(err)
	}
	var e *errs.Error
	if errors.As(err, &e) {
		w.Kind, w.Hint = e.Kind, e.Hint
	}
	return w
}

// errnoOf returns the error number that corresponds to one of Go's own errors.
func errnoOf(err error) syscall.Errno {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return unix.ENOENT
	case errors.Is(err, fs.ErrExist):
		return unix.EEXIST
	case errors.Is(err, fs.ErrPermission):
		return unix.EACCES
	}
	return 0
}

// decode returns an error with the kind, texts, hint and error number of the original one.
func (w *wireError) decode() error {
	switch {
	case w == nil:
		return nil
	case w.Text == "":
		return &errs.Error{Kind: w.Kind, Op: w.Op, Message: w.Message, Hint: w.Hint, Err: w.Cause.decode()}
	case w.Kind != "":
		return &errs.Error{Kind: w.Kind, Message: w.Text, Hint: w.Hint}
	}
	return &remoteError{w.Text, w.Errno, w.Timed}
}

// remoteError is an error without a kind that occurred in a worker.
type remoteError struct {
	text  string
	errno syscall.Errno
	timed bool
}

// Error implements error.
func (e *remoteError) Error() string { return e.text }

// Unwrap returns the kernel's error, if there is one.
func (e *remoteError) Unwrap() error {
	switch {
	case e.errno != 0:
		return e.errno
	case e.timed:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// send writes one message.
func send(c *net.UnixConn, message any, files ...*os.File) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(text) > maxReply {
		return errs.New(errs.Failed, "", "a message of %d bytes is more than the %d that fit", len(text), maxReply)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
	if _, _, err := c.WriteMsgUnix(head, rights, nil); err != nil {
		return err
	}
	_, err = c.Write(text)
	return err
}

// receive reads one message. The caller must close the files, also after an error.
func receive(c *net.UnixConn, message any) (files []*os.File, err error) {
	head, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, m, _, _, err := c.ReadMsgUnix(head, rights)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, err
	}
	if files, err = opened(rights[:m]); err != nil {
		return files, err
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return files, err
	}
	size := binary.LittleEndian.Uint32(head)
	if size > maxReply {
		return files, fmt.Errorf("a message of %d bytes is more than the %d that are allowed", size, maxReply)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(c, text); err != nil {
		return files, err
	}
	return files, json.Unmarshal(text, message)
}

// opened returns the open files of a control message.
func opened(rights []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, os.NewSyscallError("recvmsg", err)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "from a worker"))
		}
	}
	return files, nil
}
