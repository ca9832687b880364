package layertree

import (
	"path/filepath"
	"strings"

	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
)

// Foundation lists the backing files of a disk's original image, which other domains may share.
func Foundation(op, dev, path string) (list []*File, err error) {
	format := "qcow2"
	for depth := 0; format == "qcow2"; depth++ {
		img, f, err := imagefile.OpenImage(path)
		if err != nil {
			return nil, errs.New(errs.Unsupported, op, "disk %s: %v", dev, err).WithHint("look at the image with qemu-img info")
		}
		f.Close() // only read
		if err := usable(op, dev, path, img); err != nil {
			return nil, err
		}
		if img.Backing == "" {
			return list, nil
		}
		if strings.Contains(img.Backing, ":") {
			return nil, errs.New(errs.Unsupported, op, "the backing file of disk %s is %.80q, which is not a regular file", dev, img.Backing).WithHint("flatten it: qemu-img rebase -b ''")
		}
		if img.BackingFmt != "qcow2" && img.BackingFmt != "raw" {
			return nil, errs.New(errs.Unsupported, op, "disk %s: %s does not name the format of its backing file", dev, path).
				WithHint("qemu-img rebase -u -F FORMAT -b %s %s, with the domain off", img.Backing, path)
		}
		next := img.Backing
		if !filepath.IsAbs(next) {
			next = filepath.Join(filepath.Dir(path), next)
		}
		path, format = next, img.BackingFmt
		st, err := imagefile.StatOf(path)
		if err != nil {
			return nil, errs.New(errs.Corrupt, op, "disk %s: a backing file is missing: %v", dev, err)
		}
		list = append(list, &File{Path: path, Format: format, Stat: st})
		if depth > 200 {
			return nil, errs.New(errs.Unsupported, op, "disk %s has a chain of more than 200 images", dev)
		}
	}
	return list, nil
}

// usable returns an error for an image with features that overlays do not support.
func usable(op, dev, path string, img imagefile.Image) error {
	switch {
	case img.Snapshots > 0:
		return errs.New(errs.Conflict, op, "disk %s: %s holds %d internal snapshots", dev, path, img.Snapshots).
			WithHint("delete them (virsh snapshot-delete, qemu-img snapshot -d); mulligan keeps its own")
	case img.Encrypted, img.External:
		return errs.New(errs.Unsupported, op, "disk %s: %s is encrypted or keeps its data in another file", dev, path)
	case img.Corrupt:
		return errs.New(errs.Corrupt, op, "disk %s: %s is marked as corrupt", dev, path).WithHint("qemu-img check -r all, with the domain off")
	}
	return nil
}
