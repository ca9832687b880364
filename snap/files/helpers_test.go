package files

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
)

// site is a workspace and the driver over it.
type site struct {
	*Driver
	dir, state, store string
	cas               *cas.Store
	cfg               Config
	casOptions        cas.Options
	n                 int
}

func newSite(t testing.TB, change ...func(*Config)) *site {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { makeRemovable(top) })
	s := &site{dir: top + "/ws", state: top + "/state", store: top + "/store"}
	for _, d := range []string{s.dir, s.state, s.store} {
		must(t, os.Mkdir(d, 0o755))
	}
	s.cfg = Config{App: "app", Dir: s.dir, StateDir: s.state, Owner: -1}
	for _, c := range change {
		c(&s.cfg)
	}
	s.open(t)
	t.Cleanup(func() { s.cas.Close() })
	return s
}

// open opens store and driver, as a new process would.
func (s *site) open(t testing.TB) {
	t.Helper()
	var err error
	if s.cas != nil {
		s.cas.Close()
	}
	s.cas, err = cas.Open(s.store, s.casOptions)
	must(t, err)
	s.cfg.Store = s.cas
	s.Driver, err = New(s.cfg)
	must(t, err)
}

func makeRemovable(top string) {
	filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(p, 0o700)
		}
		return nil
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *site) capture(t testing.TB) snap.Snapshot {
	t.Helper()
	s.n++
	got, err := s.Capture(t.Context(), snap.CaptureRequest{ID: snap.SnapshotID(fmt.Sprintf("fs-%d", s.n)), Quiesced: true})
	must(t, err)
	return got
}

// restore goes to target and gives the snapshot of where it came from.
func (s *site) restore(t testing.TB, target snap.SnapshotID, paths ...string) snap.Snapshot {
	t.Helper()
	base := s.capture(t)
	s.n++
	req := snap.RestoreRequest{ID: snap.RestoreID(fmt.Sprintf("op-%d", s.n)), Target: target, Base: base.ID}
	sw, err := s.PrepareScoped(t.Context(), req, paths)
	must(t, err)
	stale, err := sw.Stale(t.Context())
	must(t, err)
	if stale {
		t.Fatal("stale at once")
	}
	must(t, sw.Commit(t.Context()))
	p, err := sw.Check(t.Context())
	must(t, err)
	if !p.Match {
		t.Fatalf("after the restore: %+v", p)
	}
	must(t, sw.Finish(t.Context()))
	return base
}

// listing says everything of everything below dir, by other means than the
// driver's: one line per path.
func listing(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	groups := map[inode.ID]string{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		line, err := describe(p, dir, groups)
		out = append(out, line)
		return err
	}))
	return out
}

func describe(p, dir string, groups map[inode.ID]string) (string, error) {
	// On FUSE the kernel may still have a time that the program behind it has changed since: this asks the program.
	if err := unix.Statx(unix.AT_FDCWD, p, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, new(unix.Statx_t)); err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return "", err
	}
	rel, err := filepath.Rel(dir, p)
	if err != nil {
		return "", err
	}
	more := ""
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		sum, err := contentOf(p)
		if err != nil {
			return "", err
		}
		more = fmt.Sprintf("%d %x", st.Size, sum)
	case unix.S_IFLNK:
		target, err := os.Readlink(p)
		if err != nil {
			return "", err
		}
		more = fmt.Sprintf("-> %q", target)
	}
	if id := (inode.ID{Dev: st.Dev, Ino: st.Ino}); st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if groups[id] == "" {
			groups[id] = rel
		}
		more += fmt.Sprintf(" first=%q", groups[id])
	}
	return fmt.Sprintf("%q %o %d:%d %d.%09d rdev=%x %s %s", rel, st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, st.Rdev, more, attrs(p)), nil
}

// contentOf is a digest of all blocks of the file that are not zero, and where they are: holes
// may be of terabytes.
func contentOf(p string) ([]byte, error) {
	f, err := os.Open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, block := sha256.New(), make([]byte, 4096)
	for off := int64(0); ; {
		data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return h.Sum(nil), nil
		}
		if err == unix.EINVAL { // a filesystem without holes
			data, err = off, nil
		}
		if err != nil {
			return nil, err
		}
		off = data &^ 4095
		n, err := f.ReadAt(block, off)
		if n > 0 && !cas.AllZero(block[:n]) {
			fmt.Fprintf(h, "%d:", off)
			h.Write(block[:n])
		}
		if err == io.EOF {
			return h.Sum(nil), nil
		}
		if err != nil {
			return nil, err
		}
		off += int64(n)
	}
}

func attrs(p string) string {
	buf := make([]byte, 4096)
	n, err := unix.Llistxattr(p, buf)
	if err != nil || n == 0 {
		return ""
	}
	names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	var out []string
	for _, name := range names {
		v := make([]byte, 4096)
		if n, err = unix.Lgetxattr(p, name, v); err == nil {
			out = append(out, fmt.Sprintf("%s=%x", name, v[:n]))
		}
	}
	return strings.Join(out, " ")
}

// same fails if two listings differ, and shows where.
func same(t testing.TB, what string, got, want []string) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	n := 0
	show := func(sign string, a, b []string) {
		for _, l := range a {
			if !slices.Contains(b, l) && n < 20 {
				t.Errorf("%s: %s %s", what, sign, l)
				n++
			}
		}
	}
	show("unexpected", got, want)
	show("missing", want, got)
	t.FailNow()
}

func write(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

var stamp = time.Date(2003, 3, 3, 3, 3, 3, 333333333, time.UTC)
