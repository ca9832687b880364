// Package output prints what commands have to say: for people on a terminal, in lines for programs in a pipe, or as the
// JSON of the API.
package output

import (
	"fmt"
	"io"
)

// Printer prints on the streams of a command.
type Printer struct {
	Stdout   *Writer
	Stderr   io.Writer
	Terminal bool // Stdout is a terminal: the printer prints for people
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

// Printf prints text that is formatted as fmt.Printf does.
func (p *Printer) Printf(format string, args ...any) { fmt.Fprintf(p.Stdout, format, args...) }

// Println prints a line as fmt.Println does.
func (p *Printer) Println(args ...any) { fmt.Fprintln(p.Stdout, args...) }

// Print prints text as fmt.Print does.
func (p *Printer) Print(args ...any) { fmt.Fprint(p.Stdout, args...) }

// Note prints a line about the command op on standard error.
func (p *Printer) Note(op, message string) {
	fmt.Fprintf(p.Stderr, "mulligan: %s: %s\n", op, Escape(message))
}
