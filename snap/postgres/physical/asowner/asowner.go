// Package asowner has what is done in the data folder of a PostgreSQL cluster, and in the store
// beside it. Both are the cluster owner's, who may put anything there, and whoever is superuser of
// a database can act as the owner. So the daemon itself opens nothing in them: the functions of
// this package do, each in a process that is the owner (package privsep). They keep no state, and
// do not wait where a file turns out to be a fifo. The driver takes what they answer as something
// that the owner said.
package asowner

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/postgres/physical/wal"
)

// none is the result of a function that has nothing to tell.
type none struct{}

// home is where the files of a cluster are.
type Home struct{ Data, Store string }

func (h Home) Archive() string { return filepath.Join(h.Store, "archive") }
func (h Home) WAL() string     { return filepath.Join(h.Data, "pg_wal") }

// openRegular opens a regular file for reading. Another kind of file is an error,
// and is not waited for.
func openRegular(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errs.New(errs.Invalid, "", "%q is not a regular file", path).WithHint("remove it, if it is not the server's")
	}
	if err != nil {
		return nil, errs.Also(err, f.Close())
	}
	return f, nil
}

// readBounded reads a regular file of at most so many bytes.
func readBounded(path string, most int64, flags int) ([]byte, error) {
	f, err := openRegular(path, flags)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = errs.New(errs.Invalid, "", "the file %q has more than %d KiB", path, most>>10).WithHint("make it smaller, or use mode = logical")
	}
	return data, err
}

// writeFile makes a regular file, or replaces what is in the one that is there.
func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// Folders

type ClusterCopy struct {
	From, To string
	Live     bool // From is a server's that runs: its transient files are left out
}

// copyAsOwner copies a data folder; To must not exist.
var Copy = privsep.Define("physical.copy", func(ctx context.Context, c ClusterCopy) (none, error) {
	omit := func(string) bool { return false }
	if c.Live {
		omit = transient
	}
	return none{}, copyCluster(ctx, c.From, c.To, omit)
})

type Arrangement struct {
	Dir   string
	Drop  []string          // files in Dir that are removed, if they are there
	Files map[string][]byte // and then written
	Sync  bool              // all that is in Dir is on the disk afterwards
}

// arrangeAsOwner removes and writes small files in a data folder.
var Arrange = privsep.Define("physical.arrange", func(_ context.Context, a Arrangement) (none, error) {
	for _, name := range a.Drop {
		if err := os.Remove(filepath.Join(a.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return none{}, err
		}
	}
	for name, data := range a.Files {
		if err := writeFile(filepath.Join(a.Dir, name), data); err != nil {
			return none{}, err
		}
	}
	if a.Sync {
		return none{}, SyncFS(a.Dir)
	}
	return none{}, nil
})

type Pair struct{ A, B string }

// exchangeAsOwner makes two folders change places, or whatever lies there.
var Exchange = privsep.Define("physical.exchange", func(_ context.Context, e Pair) (none, error) {
	return none{}, swap(e.A, e.B)
})

// removeAsOwner removes files, and folders with all that is in them.
var Remove = privsep.Define("physical.remove", func(_ context.Context, paths []string) (none, error) {
	for _, p := range paths {
		if err := removeAll(p); err != nil {
			return none{}, err
		}
	}
	return none{}, nil
})

type NewFolder struct {
	Path string
	Old  bool // it may be there
}

// mkdirAsOwner makes a folder that nobody else enters.
var Mkdir = privsep.Define("physical.mkdir", func(_ context.Context, n NewFolder) (none, error) {
	err := os.Mkdir(n.Path, 0o700)
	if n.Old && errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return none{}, err
})

// namesAsOwner lists a folder.
var Names = privsep.Define("physical.names", func(_ context.Context, dir string) ([]string, error) { return names(dir) })

func names(dir string) (list []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list, err
}

// sumList is an open file with a list of sums, which may be longer than a message.
type sumList struct {
	File *os.File `json:"-"`
}

// Files implements privsep.Carrier.
func (l *sumList) Files() []**os.File { return []**os.File{&l.File} }

// maxSums is how many bytes a list of sums may have: it takes some 110 a file.
const MaxSums = 512 << 20

func TooManyFiles() error {
	return errs.New(errs.Unsupported, "", "the cluster has too many files: their sums take more than %d MiB", MaxSums>>20).
		WithHint("use mode = logical")
}

// sumsAsOwner lists the files of a data folder with their digests.
var Sums = privsep.Define("physical.sums", func(ctx context.Context, dir string) (l sumList, err error) {
	fd, err := unix.MemfdCreate("mulligan-sums", unix.MFD_CLOEXEC)
	if err != nil {
		return l, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "sums")
	out := bufio.NewWriter(f)
	if err = errors.Join(sums(ctx, dir, out), out.Flush()); err != nil {
		return l, errs.Also(err, f.Close())
	}
	return sumList{f}, nil
})

// The store

type Claim struct {
	Store string
	Mine  string // what the file that claims it holds
}

// claimAsOwner makes the store, unless it is there, and marks it as an app's; made
// says that it was not there.
var TakeClaim = privsep.Define("physical.claim", func(_ context.Context, c Claim) (made bool, err error) {
	err = os.Mkdir(c.Store, 0o700)
	made = err == nil
	if errors.Is(err, fs.ErrPermission) {
		return false, unwritable(filepath.Dir(c.Store))
	}
	if !made && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	for _, dir := range []string{"archive", "bases", "forks"} {
		if err := os.MkdirAll(filepath.Join(c.Store, dir), 0o700); err != nil {
			return made, err
		}
	}
	file := filepath.Join(c.Store, "claim")
	switch data, err := readBounded(file, maxClaim, unix.O_NOFOLLOW); {
	case errors.Is(err, fs.ErrNotExist):
		if err := durable.WriteFile(file, []byte(c.Mine), 0o600); err != nil {
			return made, err
		}
		return made, durable.Sync(filepath.Dir(c.Store))
	case err != nil:
		return made, err
	case string(data) != c.Mine:
		return made, errs.New(errs.Conflict, "", "the cluster is in the care of %s already", strings.TrimSpace(string(data))).
			WithHint("in physical mode a cluster belongs to one app alone; use mode = logical for the other")
	}
	return made, nil
})

// maxClaim is how many bytes the claim of a store may have.
const maxClaim = 4 << 10

// layoutAsOwner checks what the data folder consists of.
var Layout = privsep.Define("physical.layout", func(_ context.Context, h Home) (none, error) {
	wal, err := os.Lstat(h.WAL())
	if err != nil {
		return none{}, err
	}
	if !wal.IsDir() {
		return none{}, errs.New(errs.Unsupported, "", "pg_wal of %s is a link to another place", h.Data).WithHint("use mode = logical")
	}
	return none{}, canExchange(h.Data, h.Store)
})

// clonesAsOwner reports whether the file system of a folder can share extents between files.
var Clones = privsep.Define("physical.clones", func(_ context.Context, store string) (bool, error) {
	in, err := os.CreateTemp(store, "probe-")
	if err != nil {
		return false, err
	}
	defer os.Remove(in.Name()) // else the next Sweep does it
	defer in.Close()
	if _, err := in.WriteString("probe"); err != nil {
		return false, err
	}
	out, err := os.CreateTemp(store, "probe-")
	if err != nil {
		return false, err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	return unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil, nil
})

type SpaceQuery struct {
	Store string
	Dir   string // "" if it takes no space
}

type space struct{ Free, Taken int64 }

// spaceAsOwner says how many bytes are free on the store's file system, and how
// many Dir takes.
var Space = privsep.Define("physical.space", func(_ context.Context, q SpaceQuery) (s space, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(q.Store, &st); err != nil {
		return s, &os.PathError{Op: "statfs", Path: q.Store, Err: err}
	}
	s.Free = int64(st.Bavail) * st.Bsize
	if q.Dir != "" {
		s.Taken, err = occupied(q.Dir)
	}
	return s, err
})

type Measurement struct {
	Home   Home
	Gone   []string // files and folders of the store
	Shared bool     // files share extents
}

// measureAsOwner says how many bytes would be free without Gone.
var Measure = privsep.Define("physical.measure", func(_ context.Context, m Measurement) (total int64, err error) {
	if !m.Shared {
		for _, p := range m.Gone {
			n, err := occupied(p)
			if err != nil {
				return 0, err
			}
			total += n
		}
		return total, nil
	}
	stay := []string{m.Home.Data}
	for _, dir := range []string{"bases", "forks", "archive", "raws"} {
		dir = filepath.Join(m.Home.Store, dir)
		list, err := names(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		for _, name := range list {
			if p := filepath.Join(dir, name); !slices.Contains(m.Gone, p) {
				stay = append(stay, p)
			}
		}
	}
	return freedBy(m.Gone, stay)
})

type Sweeping struct {
	Store string
	Known []string // folders of bases and forks, as paths below Store
}

// leftovers are files and folders of the store that no record names: those of a
// folder whose names begin so.
var leftovers = []struct{ dir, prefix string }{{"bases", ""}, {"forks", ""}, {"raws", ""}, {".", "log-"}, {".", "probe-"}, {"archive", ".copy."}}

// sweepAsOwner removes what is in the store and not known.
var Sweep = privsep.Define("physical.sweep", func(_ context.Context, s Sweeping) (none, error) {
	for _, l := range leftovers {
		list, err := names(filepath.Join(s.Store, l.dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return none{}, err
		}
		for _, name := range list {
			rel := filepath.Join(l.dir, name)
			if !strings.HasPrefix(name, l.prefix) || slices.Contains(s.Known, rel) {
				continue
			}
			if err := removeAll(filepath.Join(s.Store, rel)); err != nil {
				return none{}, err
			}
		}
	}
	return none{}, nil
})

// The log

// saveLogAsOwner copies log into the archive.
var SaveLog = privsep.Define("physical.saveLog", func(ctx context.Context, s LogToSave) (none, error) {
	return none{}, s.save(ctx)
})

type HistoryQuery struct {
	Home Home
	TLI  wal.Timeline
}

// maxHistory is how many bytes the history of a timeline may have.
const maxHistory = 1 << 20

// historyAsOwner reads how a timeline came about: from the archive, which gets each
// history before anything is written on its timeline. Without one it gives nil.
var History = privsep.Define("physical.history", func(_ context.Context, q HistoryQuery) ([]byte, error) {
	return q.Home.history(q.TLI)
})

func (h Home) history(t wal.Timeline) ([]byte, error) {
	for _, dir := range []string{h.Archive(), h.WAL()} {
		data, err := readBounded(filepath.Join(dir, t.HistoryFile()), maxHistory, unix.O_NOFOLLOW)
		if !Absent(err) && !errors.Is(err, fs.ErrPermission) {
			return data, err
		}
	}
	return nil, nil
}

type BaseQuery struct {
	Home  Home
	Bases []wal.Base
	TLI   wal.Timeline // of the marker, and its place
	LSN   wal.LSN
	Size  wal.Segments
	// Conf is set where the live state is captured. It asks for the configuration too, and
	// is the digest of the one that the daemon has, or "".
	Conf   *string
	System string // then: the server's cluster
}

type BaseFound struct {
	Base string // its ID
	Same bool   // the configuration is the one that the daemon has; else it is Conf
	Conf map[string][]byte
}

// findBaseAsOwner finds the base for a marker, given that all of the log between
// the two is there. It is one function so that a capture makes one call.
var FindBase = privsep.Define("physical.findBase", func(_ context.Context, q BaseQuery) (found BaseFound, err error) {
	if q.Conf != nil {
		if err := q.Home.whole(q.System); err != nil {
			return found, err
		}
	}
	if found.Base, err = q.find(); err != nil || q.Conf == nil {
		return found, err
	}
	found.Conf, err = readConf(q.Home.Data)
	if err == nil && ConfDigest(found.Conf) == *q.Conf {
		found.Same, found.Conf = true, nil
	}
	return found, err
})

func (q BaseQuery) find() (id string, err error) {
	data, err := q.Home.history(q.TLI)
	if err != nil {
		return "", err
	}
	legs, err := wal.LegsOf(q.TLI, data)
	if err != nil {
		return "", err
	}
	b, err := wal.Choose(q.Bases, legs, q.TLI, q.LSN)
	if err != nil {
		return "", err
	}
	if n, err := Inode(filepath.Join(q.Home.Store, "bases", b.ID)); err != nil || n == 0 {
		return "", errs.Also(errs.New(errs.Corrupt, "", "base copy %s is gone", b.ID).WithHint("use another checkpoint"), err)
	}
	names := q.Size.Names(wal.Path(legs, b.TLI, b.Start, q.LSN))
	if err := q.Home.present(names); err != nil || q.Conf == nil {
		return b.ID, err
	}
	return b.ID, q.Home.link(names)
}

// whole checks that the data folder is the one of the server that runs, which goes on
// for a while when its folder is removed or replaced. It runs as the owner.
func (h Home) whole(system string) error {
	lost := errs.New(errs.Failed, "", "the server of cluster %s runs, and %s is no longer its data folder", system, h.Data).
		WithHint("put the folder back")
	f, err := openRegular(filepath.Join(h.Data, "global", "pg_control"), unix.O_NOFOLLOW)
	if err != nil {
		return errs.Also(lost, err)
	}
	defer f.Close() // it was only read
	var id [8]byte  // the first field (catalog/pg_control.h, ControlFileData)
	if _, err := io.ReadFull(f, id[:]); err != nil || strconv.FormatUint(binary.NativeEndian.Uint64(id[:]), 10) != system {
		return errs.Also(lost, err)
	}
	if info, err := os.Lstat(filepath.Join(h.Data, "PG_VERSION")); err != nil || !info.Mode().IsRegular() {
		return errs.Also(errs.New(errs.Failed, "", "%s has no file PG_VERSION, without which its server cannot be started again", h.Data).
			WithHint("put the file back"), err)
	}
	return nil
}

// maxConf is how many bytes a file of the server's configuration may have.
const maxConf = 4 << 20

// readConf reads the configuration that is in a data folder.
func readConf(dataDir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, name := range Configured {
		data, err := readBounded(filepath.Join(dataDir, name), maxConf, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is elsewhere, as on Debian
		} else if err != nil {
			return nil, err
		}
		files[name] = data
	}
	return files, nil
}

// confDigest names a configuration.
func ConfDigest(files map[string][]byte) string {
	data, err := json.Marshal(files)
	if err != nil {
		panic(err) // bytes always marshal
	}
	sum := blake3.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

type LogLinks struct {
	Home  Home
	Dir   string       // it must not exist
	Names []string     // the log files, or
	First string       // all of its timeline from this one on, as far as they are log of
	Size  wal.Segments // this size
}

// linkLogAsOwner makes a folder of links to log files, wherever they are.
var LinkLog = privsep.Define("physical.linkLog", func(_ context.Context, l LogLinks) (none, error) {
	if err := os.Mkdir(l.Dir, 0o700); err != nil {
		return none{}, err
	}
	if l.First != "" {
		return none{}, l.linkFrom()
	}
	return none{}, l.linkNamed()
})

// tailAsOwner reads the end of a file that may be long: up to maxTail bytes.
var Tail = privsep.Define("physical.tail", func(_ context.Context, path string) ([]byte, error) {
	f, err := openRegular(path, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, size-maxTail), maxTail))
})

const maxTail = 1 << 20

// canExchange checks that the two folders can change places. It runs as the owner.
func canExchange(data, store string) error {
	var above, at, other unixStat
	for path, st := range map[string]*unixStat{dirOf(data): &above, data: &at, store: &other} {
		if err := lstat(path, st); err != nil {
			return err
		}
	}
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, data, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &x); err != nil {
		return &os.PathError{Op: "statx", Path: data, Err: err}
	}
	switch {
	case above.Dev != at.Dev, x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return errs.New(errs.Unsupported, "", "the data folder %s is a mount point, which cannot be exchanged", data).
			WithHint("move the cluster into a folder below the mount point, or use mode = logical")
	case other.Dev != at.Dev:
		return errs.New(errs.Unsupported, "", "%s is not on the file system of %s", store, data).WithHint("choose a store beside the data folder")
	}
	if err := access(dirOf(data)); err != nil {
		return unwritable(dirOf(data))
	}
	return nil
}

func unwritable(dir string) error {
	return errs.New(errs.Denied, "", "the server's user cannot write to %s, where the data folders are exchanged", dir).
		WithHint("chown the folder to the server's user")
}

// absent reports whether the error says that nothing is at a path, or that nothing can be.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// configured are the files in the data folder that say how the server runs.
// They are not in the log, so a marker keeps them.
var Configured = []string{"postgresql.conf", "postgresql.auto.conf", "pg_hba.conf", "pg_ident.conf"}
