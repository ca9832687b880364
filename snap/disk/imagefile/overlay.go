package imagefile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"mulligan/durable"
	"mulligan/errs"
)

// CreateOverlay durably creates an empty image with the backing file backing, for a disk of size bytes, and checks it. give
// sets the owner of the file.
func CreateOverlay(ctx context.Context, path, backing string, size int64, give func(path string) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // never overwrites a file
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if _, err := Run(ctx, "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", backing, path, fmt.Sprint(size)); err != nil {
		return err
	}
	if err := give(path); err != nil {
		return err
	}
	if err := errors.Join(durable.Sync(path), durable.Sync(filepath.Dir(path))); err != nil {
		return err
	}
	img, f, err := OpenImage(path)
	if err != nil {
		return err
	}
	defer f.Close() // only read
	if empty, err := img.Empty(f); err != nil || !empty || img.Backing != backing || img.Size != size {
		return errs.New(errs.Internal, "", "qemu-img made something else of %s than was asked for", path)
	}
	return nil
}
