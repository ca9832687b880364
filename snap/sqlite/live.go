package sqlite

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/beneath"
)

// live is the live database, locked so that it holds still: the image stays
// what it is until close, except that a log may be begun anew (see moved).
type live struct {
	image
	root, dir *beneath.Root // dir is the folder of the database; nil: there is none
	name      string        // in dir
	db        *os.File      // nil: there is no database
	stat      unix.Stat_t   // of db
	files     []*os.File    // the others, to be closed
	wal       *wal          // nil: nothing in it counts
	position  string
	identity  identity
	warnings  []string
}

// openLive opens and locks the live database, waiting for others for as long as the
// configuration says. With alone, nobody else can be using it until close.
func (d *Driver) openLive(ctx context.Context, alone bool) (*live, error) {
	var l *live
	err := retry(ctx, d.cfg.BusyTimeout, d.cfg.Path, func() (err error) {
		l, err = d.tryOpen(alone)
		return err
	})
	if err != nil {
		return nil, d.classify("", err)
	}
	return l, nil
}

func (d *Driver) tryOpen(alone bool) (*live, error) {
	l := &live{}
	if err := l.open(d.cfg, alone); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *live) close() error {
	var list []error
	for _, f := range append(l.files, l.db) {
		if f != nil {
			list = append(list, f.Close())
		}
	}
	for _, r := range []*beneath.Root{l.dir, l.root} {
		if r != nil {
			list = append(list, r.Close())
		}
	}
	*l = live{}
	return errors.Join(list...)
}

// openDir opens the folder of cfg, if it is its owner's.
func openDir(cfg Config) (*beneath.Root, error) {
	root, err := beneath.Open(cfg.Dir)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(root.FD(), &st); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	if !cfg.owns(st) {
		return nil, errors.Join(foreign(cfg.Dir), root.Close())
	}
	return root, nil
}

func (c Config) owns(st unix.Stat_t) bool { return c.Owner == 0 || int(st.Uid) == c.Owner }

// foreign says that something is not the app's owner's. Restoring it would
// change what the owner may not.
func foreign(path string) error {
	return errs.New(errs.Denied, "", "%s belongs to somebody else than the app's owner", path).
		WithHint("give it back to its owner, or have root register the app")
}

func (l *live) open(cfg Config, alone bool) (err error) {
	if l.root, err = openDir(cfg); err != nil {
		return err
	}
	l.dir, l.name, err = l.root.Parent(cfg.Path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	db, err := l.dir.OpenFile(l.name, unix.O_RDWR, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.ELOOP) {
		return aLink(cfg.Path)
	}
	if err != nil {
		return err
	}
	l.db = db
	if err := regular(db, &l.stat); err != nil {
		return err
	}
	if !cfg.owns(l.stat) {
		return foreign(db.Name())
	}
	if err := lockShared(db); err != nil {
		return err
	}
	return l.read(alone)
}

// read works out the image; the reader's lock is held, so that nobody writes to the
// database file but a checkpoint, and nobody removes what lies beside it.
func (l *live) read(alone bool) error {
	if err := l.settled(); err != nil {
		return err
	}
	if alone {
		if err := lockExclusive(l.db); err != nil {
			return err
		}
		if pid := opener(l.stat); pid != 0 {
			return &lockedError{l.db.Name(), pid}
		}
	}
	if err := unix.Fstat(int(l.db.Fd()), &l.stat); err != nil {
		return err
	}
	l.image = image{file: l.db, size: l.stat.Size}
	l.identity.DB = newFileID(l.stat)
	if l.stat.Nlink > 1 {
		l.warnings = append(l.warnings, "The database has several hard links; a restore breaks them.")
	}
	if l.size == 0 {
		l.position = "empty"
		return nil // SQLite heeds no journal and no log beside an empty file
	}
	var h header
	if err := ignoreEOF(readFull(l.db, h[:], 0)); err != nil {
		return err
	}
	if !h.valid() {
		return errs.New(errs.Invalid, "", "%s is not a SQLite database", l.db.Name()).
			WithHint("check the path; encrypted databases are not supported")
	}
	l.position = h.position()
	if err := l.readJournal(h.pageSize()); err != nil {
		return err
	}
	if err := l.readLog(h.logged(), alone); err != nil {
		return err
	}
	return l.bounded()
}

// How much larger than the disk space that its files take a database may be: a
// log of a few bytes can claim a size of terabytes, and a file can be a hole.
const (
	sparseness = 64
	leeway     = 1 << 30
)

// bounded refuses what nobody could capture: an image of nearly nothing but holes.
func (l *live) bounded() error {
	var allocated int64
	for _, f := range append(l.files, l.db) {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return err
		}
		allocated += st.Blocks * 512
	}
	if l.length() <= sparseness*allocated+leeway {
		return nil
	}
	return errs.New(errs.Invalid, "", "%s claims to be %s large, and takes %s on the disk", l.db.Name(), size(l.length()), size(allocated)).
		WithHint("it is damaged, or made up; look at it with the sqlite3 tool")
}

// settled checks that the path still names the file that is locked.
func (l *live) settled() error {
	var st unix.Stat_t
	err := unix.Fstatat(l.dir.FD(), l.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && (st.Ino != l.stat.Ino || st.Dev != l.stat.Dev) || errors.Is(err, unix.ENOENT) {
		return &lockedError{path: l.db.Name()} // replaced meanwhile: try again
	}
	return err
}

// readJournal lays over what a hot journal puts back: one whose writer died,
// since it does not hold the reserved lock any more.
func (l *live) readJournal(pageSize int64) error {
	f, size, err := l.beside("-journal")
	if f == nil || err != nil || size == 0 {
		return err
	}
	var first [1]byte
	if err := readFull(f, first[:], 0); err != nil || first[0] == 0 {
		return ignoreEOF(err)
	}
	l.identity.Journal = true
	if pid, err := lockHolder(l.db, unix.F_WRLCK, reservedByte, 1); pid != 0 || err != nil {
		return err
	}
	layer, err := readJournal(f, size, pageSize)
	if errors.Is(err, errSuperJournal) {
		return errs.Wrap(errs.Conflict, "", &errs.Error{Kind: errs.Conflict, Message: f.Name(), Err: err,
			Hint: "open the database once with its app, or with the sqlite3 tool"})
	}
	if layer != nil {
		l.layers = append(l.layers, layer)
	}
	return err
}

// readLog lays over what the write-ahead log holds. While somebody is
// connected, the checkpointer's lock keeps the database file as it is;
// otherwise nobody must come.
func (l *live) readLog(logged, alone bool) error {
	if !logged {
		err := unix.Faccessat(l.dir.FD(), l.name+"-wal", unix.F_OK, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
	}
	if !alone {
		if err := l.holdStill(); err != nil {
			return err
		}
	}
	f, size, err := l.beside("-wal")
	if f == nil || err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	l.identity.Log = newFileID(st)
	if l.wal, err = readWAL(f, size); err != nil {
		return err
	}
	if l.wal != nil {
		l.layers = append(l.layers, &l.wal.layer)
		l.position += ", " + l.wal.position()
	}
	return nil
}

func (l *live) holdStill() error {
	shm, _, err := l.beside("-shm")
	if err != nil {
		return err
	}
	if shm == nil {
		return lockExclusive(l.db)
	}
	return setLock(shm, unix.F_WRLCK, checkpointer, 1)
}

// moved reports whether the image is no longer whole, since the log was begun
// anew. That happens at most once, and only where all of the log had been
// copied to the database file before: the next image is whole.
func (l *live) moved() (bool, error) {
	if l.wal == nil {
		return false, nil
	}
	return l.wal.moved()
}

// beside opens a file beside the database; nil if there is none.
func (l *live) beside(suffix string) (*os.File, int64, error) {
	f, err := l.dir.OpenFile(l.name+suffix, unix.O_RDWR, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, 0, nil
	}
	if errors.Is(err, unix.ELOOP) {
		err = aLink(l.name + suffix)
	}
	if err != nil {
		return nil, 0, err
	}
	l.files = append(l.files, f)
	var st unix.Stat_t
	err = regular(f, &st)
	return f, st.Size, err
}

// aLink says that a symbolic link lies where a file of the database should.
func aLink(path string) error {
	return errs.New(errs.Invalid, "", "%s is a symbolic link", path).WithHint(pathHint)
}

const pathHint = "the path must lead to a regular file, through folders and no links"

func regular(f *os.File, st *unix.Stat_t) error {
	if err := unix.Fstat(int(f.Fd()), st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errs.New(errs.Invalid, "", "%s is not a regular file", f.Name()).WithHint(pathHint)
	}
	return nil
}

// classify gives err a kind, where it has none yet.
func (d *Driver) classify(op string, err error) error {
	e := &errs.Error{Kind: errs.Failed, Op: op, Message: "database " + d.cfg.Path, Err: err}
	switch {
	case errors.Is(err, unix.ELOOP):
		e.Kind, e.Hint = errs.Denied, "name the database by a path without symbolic links"
	case errors.Is(err, unix.EXDEV):
		e.Kind, e.Hint = errs.Denied, "register the database with the folder that is mounted there"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		e.Kind, e.Hint = errs.Denied, "the daemon needs to read and write the database"
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENOTDIR):
		e.Kind, e.Hint = errs.Invalid, pathHint
	case errors.Is(err, unix.ENOSPC):
		e.Hint = "free some disk space"
	default:
		return errs.Wrap(errs.Failed, op, err)
	}
	return e
}
