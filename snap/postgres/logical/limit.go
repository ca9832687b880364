package logical

import (
	"bytes"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"mulligan/ipc/errs"
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

// runBounded runs a tool to its end, with a limit of its memory.
func runBounded(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	limit := &unix.Rlimit{Cur: toolMemory, Max: toolMemory}
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_DATA, limit, nil); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // err is the one to tell
		return os.NewSyscallError("prlimit", err)
	}
	return cmd.Wait()
}
