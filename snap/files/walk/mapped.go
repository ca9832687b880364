package walk

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MappedToWrite gives the inode numbers of files that some process has mapped,
// shared and writable, on the device dev, as far as this process may look into
// others. On filesystems that show other devices there (btrfs, overlayfs) it
// gives those of all that are no disk's. One too many is only read in vain.
func MappedToWrite(dev uint64) map[uint64]bool {
	out := map[uint64]bool{}
	list, err := os.ReadDir("/proc")
	if err != nil {
		return out
	}
	keep := func(major, minor uint32, ino uint64) {
		if d := unix.Mkdev(major, minor); d == dev || major == 0 && unix.Major(dev) == 0 {
			out[ino] = true
		}
	}
	for _, e := range list {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		fd, err := unix.Open("/proc/"+e.Name()+"/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // it has ended, or is another user's
		}
		f := os.NewFile(uintptr(fd), "maps")
		if !askMaps(f, keep) {
			readMaps(f, keep)
		}
		f.Close()
	}
	return out
}

// procmapQuery is struct procmap_query of linux/fs.h (Linux 6.11).
type procmapQuery struct {
	size, flags, addr                             uint64
	start, end, vmaFlags, pageSize, offset, inode uint64
	major, minor                                  uint32
	nameSize, buildIDSize                         uint32
	nameAddr, buildIDAddr                         uint64
}

const (
	procmapQueryCall = 0xc0686611 // _IOWR('f', 17, struct procmap_query)
	// a mapping of a file, writable and shared, that holds addr or is the next
	procmapWanted = 0x02 | 0x08 | 0x10 | 0x20
)

// askMaps asks the kernel for the mappings that matter. It reports whether it can say.
func askMaps(f *os.File, do func(major, minor uint32, ino uint64)) bool {
	for at := uint64(0); ; {
		q := procmapQuery{flags: procmapWanted, addr: at}
		q.size = uint64(unsafe.Sizeof(q))
		_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), procmapQueryCall, uintptr(unsafe.Pointer(&q)))
		switch {
		case e == unix.EINTR:
			continue
		case e == unix.ENOENT, e == unix.ESRCH: // no more of them, or no memory any more
			return true
		case e != 0:
			return false
		}
		do(q.major, q.minor, q.inode)
		at = q.end
	}
}

// readMaps is askMaps for older kernels: it reads the text (proc_pid_maps(5)).
func readMaps(f *os.File, do func(major, minor uint32, ino uint64)) {
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) < 5 || len(fields[1]) < 4 || fields[1][1] != 'w' || fields[1][3] != 's' {
			continue
		}
		var major, minor uint32
		if _, err := fmt.Sscanf(string(fields[3]), "%x:%x", &major, &minor); err != nil {
			continue
		}
		if ino, err := strconv.ParseUint(string(fields[4]), 10, 64); err == nil && ino != 0 {
			do(major, minor, ino)
		}
	}
}
