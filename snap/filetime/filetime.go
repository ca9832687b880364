// Package filetime decides from a file's timestamp whether a later write would change it.
// Filesystems store timestamps in steps of between one nanosecond and two seconds.
package filetime

import "time"

// Tick is the longest time during which the kernel gives writes the same timestamp: before Linux
// 6.13 timestamps come from a clock that ticks every 1 to 10 ms.
const Tick = 10 * time.Millisecond

// Coarsest is the longest step between two timestamps of a filesystem: FAT stores even seconds.
const Coarsest = 2 * time.Second

// Reliable reports whether every write from now on changes this timestamp, which is given in
// seconds and nanoseconds since 1970.
func Reliable(sec int64, nsec uint32, now time.Time) bool {
	return sec*1e9+int64(nsec)+int64(step(sec, nsec)) <= now.Add(-Tick).UnixNano()
}

// step returns the longest timestamp step of a filesystem that can have stored this timestamp:
// ext4 with small inodes stores whole seconds, FAT even seconds, NTFS 100 nanoseconds. On a finer
// filesystem such a timestamp occurs by chance; the file is then read once more than needed.
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
