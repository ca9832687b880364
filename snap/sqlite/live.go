package sqlite

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap/beneath"
)

// live is the live database, locked so that it does not change: the image stays the same until close,
// unless the log is reset (see moved).
type live struct {
	image
	root, dir *beneath.Root // dir is the folder of the database; nil if missing
	gone      error         // the error of opening root if Config.Dir does not exist; root and dir are nil then
	name      string        // of the database in dir
	db        *os.File      // nil: the database is missing
	readOnly  error         // why db is open for reading only; nil: it is open for writing too
	stat      unix.Stat_t   // of db
	files     []*os.File    // other open files
	wal       *wal          // nil: no log, or without committed frames
	unheld    bool          // nothing keeps clients from connecting, and from changing the database file (see holdStill)
	position  string
	identity  identity
	warnings  []string
	failpoint failpoint.Hook
}

// openLive opens and locks the live database. It waits for other users up to the configured time. If
// alone is set, nobody else can use the database until close.
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
	l := &live{failpoint: d.cfg.Failpoint}
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

// openDir opens the folder of cfg and checks its owner.
func openDir(cfg Config) (*beneath.Root, error) {
	root, err := beneath.Open(cfg.Dir)
	if err != nil && ignoreMissing(err) == nil {
		return nil, &errs.Error{Kind: errs.Conflict, Message: "there is no folder " + cfg.Dir + " for the database", Err: err,
			Hint: "make the folder, with the owner and mode that it should have"}
	}
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

// foreign returns the error for a file that does not belong to the app's owner. A restore would change
// a file that the owner may not change.
func foreign(path string) error {
	return errs.New(errs.Denied, "", "%s does not belong to the app's owner", path).
		WithHint("give the file to the app's owner (chown), or have root register the app")
}

func (l *live) open(cfg Config, alone bool) error {
	if err := l.openFile(cfg, alone); err != nil || l.db == nil {
		return err
	}
	if err := lockShared(l.db); err != nil {
		return err
	}
	return l.read(alone)
}

// openFile opens the folder and the file of the database. If alone is set, it returns an error for a file that the daemon may
// not write, unless nobody else may write it either.
func (l *live) openFile(cfg Config, alone bool) (err error) {
	l.root, err = openDir(cfg)
	if err != nil && ignoreMissing(err) == nil {
		l.gone = err
		l.warnings = append(l.warnings, "There is no folder "+cfg.Dir+": the database is captured as missing.")
		return nil
	}
	if err != nil {
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
	if mayNot(err) {
		l.readOnly = err
		db, err = l.dir.OpenFile(l.name, unix.O_RDONLY, 0)
	}
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
	if sealed := l.stat.Mode&0o222 == 0 && int(l.stat.Uid) == os.Geteuid(); alone && !sealed {
		return l.readOnly
	}
	return nil
}

// mayNot reports whether err says that access is denied.
func mayNot(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS)
}

// read determines the image. It holds the reader's lock, so that only a checkpoint writes to the
// database file, and nobody removes the files beside it.
func (l *live) read(alone bool) error {
	if err := l.checkPath(); err != nil {
		return err
	}
	if alone {
		if err := l.exclude(); err != nil {
			return err
		}
		if pid := opener(l.stat); pid != 0 {
			return &lockedError{l.db.Name(), pid}
		}
	}
	if err := l.measure(); err != nil {
		return err
	}
	if l.stat.Nlink > 1 {
		l.warnings = append(l.warnings, "The database has several hard links; a restore breaks them.")
	}
	if l.size == 0 {
		l.position = "empty"
		return nil // SQLite ignores journal and log beside an empty file
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

// exclude turns the reader's lock on the database into an exclusive one. A file that nobody may write cannot be locked so: it
// suffices that nobody else has locked it.
func (l *live) exclude() error {
	if l.readOnly == nil {
		return lockExclusive(l.db)
	}
	pid, err := lockHolder(l.db, unix.F_WRLCK, pendingByte, 2+sharedSize)
	if pid != 0 {
		return &lockedError{l.db.Name(), pid}
	}
	return err
}

// measure takes the size and the identity of the database file.
func (l *live) measure() error {
	if err := unix.Fstat(int(l.db.Fd()), &l.stat); err != nil {
		return err
	}
	l.image.file, l.image.size = l.db, l.stat.Size
	l.identity.DB = newFileID(l.stat)
	return nil
}

// Limits of how much larger than its allocated disk space a database may be: a log of a few bytes can
// claim a size of terabytes, and a file can be sparse.
const (
	sparseness = 64
	leeway     = 1 << 30
)

// bounded returns an error for an image that consists almost entirely of holes.
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
		WithHint("the file is damaged or forged: check it with the sqlite3 tool")
}

// checkPath checks that the path still leads to the locked file.
func (l *live) checkPath() error {
	var st unix.Stat_t
	err := unix.Fstatat(l.dir.FD(), l.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && (st.Ino != l.stat.Ino || st.Dev != l.stat.Dev) || errors.Is(err, unix.ENOENT) {
		return &lockedError{path: l.db.Name()} // the file was replaced: try again
	}
	return err
}

// readJournal adds the pages of a hot journal to the image. A journal is hot if its writer died: nobody
// holds the reserved lock.
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

// readLog adds the pages of the write-ahead log to the image. While clients are connected, the
// checkpointer's lock keeps the database file unchanged; otherwise readLog keeps clients out if it can.
func (l *live) readLog(logged, alone bool) error {
	if !logged {
		err := unix.Faccessat(l.dir.FD(), l.name+"-wal", unix.F_OK, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
	}
	if !alone {
		if err := l.failpoint.At("log: hold still"); err != nil {
			return err
		}
		if err := l.holdStill(); err != nil {
			return err
		}
		if err := l.measure(); err != nil { // until now, a checkpoint could write to the database file
			return err
		}
	}
	f, _, err := l.beside("-wal")
	if f == nil || err != nil {
		return err
	}
	if err := l.failpoint.At("log: measure"); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	l.identity.Log = newFileID(st)
	if l.wal, err = readWAL(f, st.Size); err != nil {
		return err
	}
	if l.wal != nil {
		l.layers = append(l.layers, &l.wal.layer)
		l.position += ", " + l.wal.position()
	}
	return nil
}

// holdStill keeps the database file unchanged until close. If nobody is connected and the daemon may not write the file, it
// cannot: then moved finds out whether somebody connected. The index that a client makes for this stays while the reader's
// lock is held, since only a client that is alone removes it.
func (l *live) holdStill() error {
	shm, _, err := l.beside("-shm")
	switch {
	case err != nil:
		return err
	case shm != nil: // a reader's lock is enough: who checkpoints takes an exclusive one
		return setLock(shm, unix.F_RDLCK, checkpointer, 1)
	case l.readOnly == nil:
		return lockExclusive(l.db)
	}
	l.unheld = true
	return nil
}

// moved reports whether the image is incomplete because the log was reset, or because a client connected that nothing kept
// from it. Each happens at most once: a log is reset only after the whole log was copied to the database file, and where a
// client has connected, holdStill has something to lock. So the next image is complete.
func (l *live) moved() (bool, error) {
	if l.unheld {
		err := unix.Faccessat(l.dir.FD(), l.name+"-shm", unix.F_OK, unix.AT_SYMLINK_NOFOLLOW)
		if !errors.Is(err, unix.ENOENT) {
			return err == nil, err
		}
	}
	if l.wal == nil {
		return false, nil
	}
	return l.wal.moved()
}

// beside opens a file beside the database for reading; it returns nil if there is none.
func (l *live) beside(suffix string) (*os.File, int64, error) {
	f, err := l.dir.OpenFile(l.name+suffix, unix.O_RDONLY, 0)
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

// aLink returns the error for a symbolic link in place of one of the database's files.
func aLink(path string) error {
	return errs.New(errs.Invalid, "", "%s is a symbolic link", path).WithHint(pathHint)
}

const pathHint = "give a path to a regular file that contains no symbolic links"

func regular(f *os.File, st *unix.Stat_t) error {
	if err := unix.Fstat(int(f.Fd()), st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errs.New(errs.Invalid, "", "%s is not a regular file", f.Name()).WithHint(pathHint)
	}
	return nil
}

// classify gives err a kind and a hint if it has no kind.
func (d *Driver) classify(op string, err error) error {
	e := &errs.Error{Kind: errs.Failed, Op: op, Message: "database " + d.cfg.Path, Err: err}
	switch {
	case errs.KindOf(err) == errs.Conflict:
		return errs.Wrap(errs.Failed, op, err)
	case errors.Is(err, unix.ELOOP):
		e.Kind, e.Hint = errs.Denied, "name the database by a path without symbolic links"
	case errors.Is(err, unix.EXDEV):
		e.Kind, e.Hint = errs.Denied, "register the database with the folder that is mounted there"
	case mayNot(err):
		e.Kind, e.Hint = errs.Denied, "the daemon needs to read the database, and to write it and its folder where a restore changes it"
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENOTDIR):
		e.Kind, e.Hint = errs.Invalid, pathHint
	case errors.Is(err, unix.ENOSPC):
		e.Hint = "free some disk space"
	default:
		return errs.Wrap(errs.Failed, op, err)
	}
	return e
}
