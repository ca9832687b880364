package files

import (
	"context"

	"mulligan/snap/files/diff"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// compare compares, and notes what the app's owner may not see.
func (d *Driver) compare(ctx context.Context, old, new *manifest.Manifest, sc relpath.Scope) ([]diff.Delta, error) {
	return diff.Compare(ctx, d.cfg.Reader, old, new, sc)
}
