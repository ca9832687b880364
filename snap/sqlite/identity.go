package sqlite

import (
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap/filetime"
)

// identity tells, without reading, that a database is still what it was.
type identity struct {
	DB, Log fileID
	Journal bool // there was a journal: then nothing is taken for granted
}

// fileID is what stat says of a file; the zero value is no file.
type fileID struct {
	Dev, Ino           uint64
	Size, Mtime, Ctime int64 // bytes; nanoseconds
	// Distinct: a write after this was read leaves other times. (Snapshots of older
	// versions say Settled instead, which was wrong where a filesystem keeps whole seconds.)
	Distinct bool
}

func newFileID(st unix.Stat_t) fileID {
	now := time.Now()
	distinct := func(t unix.Timespec) bool { return filetime.Settled(t.Sec, uint32(t.Nsec), now) }
	return fileID{
		Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(),
		Distinct: distinct(st.Mtim) && distinct(st.Ctim),
	}
}

// proves reports whether a file that stat describes as now surely has the
// content that it had when stat described it as f.
func (f fileID) proves(now fileID) bool {
	distinct := f.Distinct || f == fileID{}
	f.Distinct, now.Distinct = false, false
	return distinct && f == now
}

// mapCheck is the size in bytes from which looking for processes that map the
// file is cheaper than reading it.
const mapCheck = 8 << 20

// surely reports, without reading it, that the database is what it was when it
// had identity i. False means that it must be read.
func (l *live) surely(i identity) bool { return l.sameFile(i) && i.Log.proves(l.identity.Log) }

// sameFile is surely for the database file alone, without its log.
func (l *live) sameFile(i identity) bool {
	return l.size >= mapCheck && !i.Journal && !l.identity.Journal && i.DB.proves(l.identity.DB) && !mapped(l.stat)
}
