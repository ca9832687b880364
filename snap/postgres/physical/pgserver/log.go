package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"mulligan/snap/postgres/physical/wal"
)

// ReadLog runs pg_waldump on the log files in dir, and calls each with the records until each returns false, the log ends,
// or a record ends after to (0: no limit). If the log fills the last file in dir and to is 0, pg_waldump waits five seconds for
// the next file. why is the last line of pg_waldump's error output.
func (p Programs) ReadLog(ctx context.Context, dir string, t wal.Timeline, from, to wal.LSN, each func(wal.Record) bool) (why string, err error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	var problem Printed
	out, in := io.Pipe()
	args := []string{"-p", dir, "-t", strconv.Itoa(int(t)), "-s", from.String()}
	if to != 0 {
		args = append(args, "-e", to.String())
	}
	run, err := p.Start(inner, in, &problem, "pg_waldump", args...)
	if err != nil {
		return "", err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = run.Wait() // pg_waldump fails at the end of the log, and when it is killed
		_ = in.Close() // never fails
	}()
	lines := bufio.NewReaderSize(out, 1<<16)
	for more, begun := true, false; more && err == nil; {
		rec, line, ok, failed := wal.ReadRecord(lines)
		switch {
		case errors.Is(failed, io.EOF):
			more = false // the caller checks that it read enough
		case failed != nil:
			err = failed
		case ok:
			begun, more = true, each(rec)
		case begun && !strings.HasPrefix(line, "rmgr: "): // more of a description: a restore point's name can have line breaks
		case !strings.HasPrefix(line, "first record is after") && strings.TrimSpace(line) != "":
			err = fmt.Errorf("%w: %.200q", wal.ErrUnclear, line)
		}
	}
	cancel()
	_ = out.Close() // never fails
	<-ended
	return problem.LastLine(), errors.Join(err, ctx.Err())
}
