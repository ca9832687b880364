package sqlite

import (
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap/filetime"
)

// identity shows, without reading the content, that a database is unchanged.
type identity struct {
	DB, Log fileID
	Journal bool // there was a journal: the identity proves nothing
}

// fileID holds the fields of stat that identify a file's content; the zero value means no file.
type fileID struct {
	Dev, Ino           uint64
	Size, Mtime, Ctime int64 // bytes; nanoseconds
	// Distinct: every later write changes the file's times. (Snapshots of older
	// versions have Settled instead, which was wrong on filesystems that store whole seconds.)
	Distinct bool
}

func newFileID(st unix.Stat_t) fileID {
	now := time.Now()
	distinct := func(t unix.Timespec) bool { return filetime.Reliable(t.Sec, uint32(t.Nsec), now) }
	return fileID{
		Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(),
		Distinct: distinct(st.Mtim) && distinct(st.Ctim),
	}
}

// proves reports whether a file with the fileID now surely has the same content as a file with the
// fileID f.
func (f fileID) proves(now fileID) bool {
	distinct := f.Distinct || f == fileID{}
	f.Distinct, now.Distinct = false, false
	return distinct && f == now
}

// mapCheck is the size in bytes from which searching for processes that map the file is cheaper than
// reading it.
const mapCheck = 8 << 20

// surely reports, without reading it, whether the database is unchanged since it had identity i. If
// false, it must be read.
func (l *live) surely(i identity) bool { return l.sameFile(i) && i.Log.proves(l.identity.Log) }

// sameFile is surely for the database file without its log.
func (l *live) sameFile(i identity) bool {
	return l.size >= mapCheck && !i.Journal && !l.identity.Journal && i.DB.proves(l.identity.DB) && !mapped(l.stat)
}
