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

// MappedToWrite returns the inode numbers of files on the device dev that a process has mapped shared and writable. It sees
// only processes that this process may inspect. On filesystems that show another device number there (btrfs, overlayfs), it
// returns the files of all devices that are not disks. A number too many costs only a reading.
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
			continue // the process has ended, or belongs to another user
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
	// a mapping of a file, writable and shared, that contains addr or is the next one after it
	procmapWanted = 0x02 | 0x08 | 0x10 | 0x20
)

// askMaps calls do for each shared and writable mapping, with an ioctl (Linux 6.11). It returns false if the kernel does not
// have that ioctl.
func askMaps(f *os.File, do func(major, minor uint32, ino uint64)) bool {
	for at := uint64(0); ; {
		q := procmapQuery{flags: procmapWanted, addr: at}
		q.size = uint64(unsafe.Sizeof(q))
		_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), procmapQueryCall, uintptr(unsafe.Pointer(&q)))
		switch {
		case e == unix.EINTR:
			continue
		case e == unix.ENOENT, e == unix.ESRCH: // no further mapping, or the process has ended
			return true
		case e != 0:
			return false
		}
		do(q.major, q.minor, q.inode)
		at = q.end
	}
}

// readMaps does the same as askMaps on older kernels: it parses the text of /proc/PID/maps (proc_pid_maps(5)).
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
