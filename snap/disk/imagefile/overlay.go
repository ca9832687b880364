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

// Hollow replaces the image at path by an empty overlay on backing, with the same size and owner, that nobody can write to.
func Hollow(path, backing string) error {
	temp := path + MergeSuffix + Random()
	size, err := ImageSize(path)
	if err == nil {
		err = CreateOverlay(context.Background(), temp, backing, size, func(temp string) error { return ChownLike(temp, path) })
	}
	if err == nil {
		err = errors.Join(SetImmutable(path, false), os.Rename(temp, path), SetImmutable(path, true))
	}
	if err != nil {
		return errors.Join(err, Remove(temp))
	}
	return durable.Sync(filepath.Dir(path))
}

// CreateOverlay durably creates an empty image with the backing file backing, or none if backing is "", for a disk of size bytes, and checks it. give
// sets the owner of the file.
func CreateOverlay(ctx context.Context, path, backing string, size int64, give func(path string) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // never overwrites a file
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	args := []string{"create", "-q", "-u", "-f", "qcow2"}
	if backing != "" {
		args = append(args, "-F", "qcow2", "-b", backing)
	}
	if _, err := Run(ctx, "qemu-img", append(args, path, fmt.Sprint(size))...); err != nil {
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
