package asowner

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/snap/fiemap"
)

// occupied returns the number of bytes on disk of the files below dir, including extents that they share. Files with more than
// one hard link are left out.
func occupied(dir string) (total int64, err error) {
	err = EachFile(dir, func(path string) error {
		var st unix.Stat_t
		err := unix.Lstat(path, &st)
		if st.Nlink == 1 {
			total += st.Blocks * 512
		}
		return err
	})
	return total, err
}

// EachFile calls f for each regular file below path. It skips files that disappear meanwhile, and folders that cannot be
// entered.
func EachFile(path string, f func(path string) error) error {
	return filepath.WalkDir(path, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			err = f(path)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	})
}

// extent is a range of bytes of the disk.
type extent struct{ start, end uint64 }

// freedBy returns how many bytes the removal of the files below gone frees. Extents that they share with files below stay are
// not freed.
func freedBy(gone, stay []string) (int64, error) {
	mine, loose, err := extents(gone)
	if err != nil {
		return 0, err
	}
	others, _, err := extents(stay)
	if err != nil {
		return 0, err
	}
	total := loose
	for _, e := range mine {
		total += int64(e.end - e.start)
	}
	for i, j := 0, 0; i < len(mine) && j < len(others); {
		a, b := mine[i], others[j]
		if low, high := max(a.start, b.start), min(a.end, b.end); low < high {
			total -= int64(high - low)
		}
		if a.end < b.end {
			i++
		} else {
			j++
		}
	}
	return total, nil
}

// extents returns the extents of files, sorted and merged, and the number of bytes of files whose extents are unknown.
func extents(paths []string) (list []extent, loose int64, err error) {
	for _, p := range paths {
		err := EachFile(p, func(path string) error {
			more, n, err := fileExtents(path)
			list, loose = append(list, more...), loose+n
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, 0, err
		}
	}
	slices.SortFunc(list, func(a, b extent) int { return cmp.Compare(a.start, b.start) })
	joined := list[:0]
	for _, e := range list {
		if n := len(joined); n > 0 && e.start <= joined[n-1].end {
			joined[n-1].end = max(joined[n-1].end, e.end)
		} else {
			joined = append(joined, e)
		}
	}
	return joined, loose, nil
}

func fileExtents(path string) (list []extent, loose int64, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close() // it was only read
	err = fiemap.Each(f, true, func(e fiemap.Extent) bool {
		if e.Flags&fiemap.Placeless != 0 {
			loose += int64(e.Length)
		} else {
			list = append(list, extent{e.Physical, e.Physical + e.Length})
		}
		return true
	})
	if err == nil {
		return list, loose, nil
	}
	info, err := f.Stat() // the file system does not support the call
	if err != nil {
		return nil, 0, err
	}
	return nil, info.Sys().(*syscall.Stat_t).Blocks * 512, nil
}
