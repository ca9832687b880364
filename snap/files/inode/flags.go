package inode

import "golang.org/x/sys/unix"

// chattr has the letters of chattr(1) for the inode flags that a user sets and that change what the kernel does with the file
// (linux/fs.h). It lacks flags that a filesystem sets itself, such as for extents.
var chattr = []struct {
	bit    uint32
	letter byte
}{
	{0x00000001, 's'}, {0x00000002, 'u'}, {0x00000004, 'c'}, {0x00000008, 'S'}, {0x00000010, 'i'}, {0x00000020, 'a'}, {0x00000040, 'd'},
	{0x00000080, 'A'}, {0x00000400, 'm'}, {0x00004000, 'j'}, {0x00008000, 't'}, {0x00010000, 'D'}, {0x00020000, 'T'}, {0x00800000, 'C'},
	{0x02000000, 'x'}, {0x20000000, 'P'}, {0x40000000, 'F'},
}

// Chattr returns the inode flags of the open file fd as an argument of chattr, such as "+Ad". It returns "" if there are none,
// and if the filesystem does not have such flags.
func Chattr(fd int) string {
	bits, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return ""
	}
	letters := []byte("+")
	for _, f := range chattr {
		if bits&f.bit != 0 {
			letters = append(letters, f.letter)
		}
	}
	if len(letters) == 1 {
		return ""
	}
	return string(letters)
}
