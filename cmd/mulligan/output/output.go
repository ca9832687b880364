// Package output prints what commands have to say: for people on a terminal, in lines for programs in a pipe, or as the
// JSON of the API.
package output

import "io"

// Printer prints on the streams of a command.
type Printer struct {
	Out      *Writer
	Err      io.Writer
	Terminal bool // Out is a terminal: the printer prints for people
	JSON     bool // the user asked for JSON
}

// Writer remembers the first error of writing, so that printing code need not
// look at each: a full disk must not pass for success.
type Writer struct {
	w   io.Writer
	err error
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes data to the underlying writer.
func (w *Writer) Write(data []byte) (int, error) {
	n, err := w.w.Write(data)
	if w.err == nil {
		w.err = err
	}
	return n, err
}

// Err returns the first error of writing.
func (w *Writer) Err() error { return w.err }
