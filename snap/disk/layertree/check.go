package layertree

import (
	"context"
	"errors"
	"os"

	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
)

// Check checks a frozen file and returns its present description. It reads a file that was touched since the last
// check, and with full any file.
func (f File) Check(ctx context.Context, op string, full bool) (File, error) {
	st, err := imagefile.StatOf(f.Path)
	if f.Absent {
		if err == nil {
			return f, imagefile.Corrupt(op, "%s is there, and was not when this was kept", f.Path)
		}
		return f, nil
	}
	if errors.Is(err, os.ErrNotExist) {
		return f, imagefile.Corrupt(op, "%s is missing", f.Path)
	}
	if err != nil {
		return f, errs.Wrap(errs.Failed, op, err)
	}
	if st == f.Stat && !full {
		return f, nil
	}
	if st.Size != f.Stat.Size {
		return f, imagefile.Corrupt(op, "%s has %d bytes now, and had %d when mulligan made it read-only", f.Path, st.Size, f.Stat.Size)
	}
	if f.Hash == "" && st.MTime != f.Stat.MTime {
		return f, imagefile.Corrupt(op, "%s was written to after it was frozen", f.Path)
	}
	hash, err := imagefile.HashFile(ctx, f.Path)
	if err != nil {
		return f, errs.Wrap(errs.Failed, op, err)
	}
	if f.Hash != "" && hash != f.Hash {
		return f, imagefile.Corrupt(op, "%s was changed after it was frozen", f.Path)
	}
	f.Stat, f.Hash = st, hash
	return f, nil
}
