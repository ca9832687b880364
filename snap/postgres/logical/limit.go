package logical

import (
	"bytes"
	"fmt"
	"io"

	"mulligan/errs"
)

// Limits of what comes from a server by way of pg_dump, in bytes, and of the
// memory of that and of pg_restore.
const (
	maxSchema  = 24 << 20 // the text of a schema
	maxArchive = 48 << 20 // the same, as pg_restore reads it
	toolMemory = 1 << 30  // of a process: what it may write to (RLIMIT_DATA)
)

// bounded passes on what is written to it, up to a limit.
type bounded struct {
	to   io.Writer
	buf  bytes.Buffer // for what is kept
	most int64
	n    int64
	err  error // why the rest was refused
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.n += int64(len(p)); b.err == nil && b.n > b.most {
		b.err = errs.New(errs.Unsupported, "", "the server sent a schema of more than %d MiB", b.most>>20).
			WithHint("is it the right server? if so, divide the database into several")
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.to.Write(p)
}

// boundedTool is the command line that runs a tool with a limit of its memory. A
// shell sets the limit, on itself, and becomes the tool: that takes no privilege, and
// what the tool starts has the limit too.
func boundedTool(path string, args []string) []string {
	script := fmt.Sprintf(`ulimit -d %d; exec "$0" "$@"`, toolMemory>>10)
	return append([]string{"/bin/sh", "-c", script, path}, args...)
}
