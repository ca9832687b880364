// Package filetime tells from the times of a file whether a later write to it would show
// in them. Filesystems keep times in steps of nanoseconds up to two seconds.
package filetime

import "time"

// Tick is how long the kernel may give one and the same time: before Linux 6.13 files get the
// time of a clock that ticks every 1 to 10 ms.
const Tick = 10 * time.Millisecond

// Coarsest is the longest step of a filesystem's clock: FAT keeps even seconds.
const Coarsest = 2 * time.Second

// Settled reports whether a write at the moment now, or later, leaves another time than this
// one, which is given in seconds and nanoseconds since 1970.
func Settled(sec int64, nsec uint32, now time.Time) bool {
	return sec*1e9+int64(nsec)+int64(step(sec, nsec)) <= now.Add(-Tick).UnixNano()
}

// step is the longest step of a clock that can have given the time: ext4 with small inodes
// keeps whole seconds, FAT even ones, NTFS 100 nanoseconds. A finer clock gives such a
// time now and then; the file is then read once more than it must be.
func step(sec int64, nsec uint32) time.Duration {
	if nsec == 0 {
		if sec%2 == 0 {
			return Coarsest
		}
		return time.Second
	}
	step := uint32(1)
	for nsec%(step*10) == 0 {
		step *= 10
	}
	return time.Duration(step)
}
