package logical

import (
	"bytes"
	"io"

	"mulligan/errs"
)

// Limits in bytes of the output of pg_dump.
const (
	maxSchema  = 24 << 20 // the text of a schema
	maxArchive = 48 << 20 // the schema as an archive for pg_restore
)

// bounded writes to another writer, up to a limit.
type bounded struct {
	to   io.Writer
	buf  bytes.Buffer // for callers that keep the output
	most int64
	n    int64
	err  error // set once the limit is exceeded
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
