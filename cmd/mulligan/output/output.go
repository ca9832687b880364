// Package output prints the results of commands in three forms: tables and sentences for people on a terminal, lines of
// fields separated by tabs for programs in a pipe, and the API's JSON.
//
// print.go has the general parts. Results that several commands print have a file each: app.go, checkpoint.go,
// receipt.go, revert.go, progress.go. A result of one command is printed beside that command.
package output

import (
	"fmt"
	"io"
)

// Printer prints on the standard streams of a command. Names and texts from outside must pass Text or Escape first.
type Printer struct {
	Stdout   *Writer
	Stderr   io.Writer
	Terminal bool // Stdout is a terminal, so the printer prints for people
	JSON     bool // the user asked for the API's JSON
	Events   bool // the user asked for what a command does, as lines of JSON, while it does it
	Colour   bool // the printer may colour what it prints
	Width    int  // columns of the terminal; 0: no limit
}

// Writer keeps the first error of writing, so that printing code need not check
// each call. The command checks Err at its end: output that a full disk cut off must not pass for success.
type Writer struct {
	Before func() // unless nil, is called before every write
	w      io.Writer
	err    error
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes data to the underlying writer and keeps the error, if it is the first.
func (w *Writer) Write(data []byte) (int, error) {
	if w.Before != nil {
		w.Before()
	}
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

// Note prints message as a line on standard error, after the name op of the command.
func (p *Printer) Note(op, message string) {
	fmt.Fprintf(p.Stderr, "mulligan: %s: %s\n", op, Escape(message))
}
