package inode

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// MountPoint is a mount in the kernel's table of them.
type MountPoint struct {
	ID     uint64
	Path   string // as the process sees it whose table it is
	Type   string // of the filesystem
	Source string
}

// longestLine bounds what is kept of a line of the table. The kernel bounds none: a path has any length, since the folders above a mount point can be
// moved, and up to four bytes stand for each of its bytes. It holds any path that a workspace may have.
const longestLine = 1 << 20

// unescaped replaces what stands for bytes of a path that would end a field or a line.
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`)

// Mounts reads a table of mounts (/proc/PID/mountinfo, see proc_pid_mountinfo(5)), in its order. Mounts reads the first longestLine bytes of each line.
// A mount is left out if its path, type or source is not within these.
func Mounts(table io.Reader) (list []MountPoint, err error) {
	lines := bufio.NewReaderSize(table, longestLine)
	for rest := false; ; {
		line, more, err := lines.ReadLine()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		of, filesystem, found := strings.Cut(string(line), " - ")
		if !rest && found {
			mount, about := strings.Split(of, " "), strings.Split(filesystem, " ")
			if len(mount) >= 6 && len(about) >= 3 { // else it is cut off here
				id, err := strconv.ParseUint(mount[0], 10, 64)
				if err != nil {
					return nil, err
				}
				list = append(list, MountPoint{id, unescaped.Replace(mount[4]), unescaped.Replace(about[0]), unescaped.Replace(about[1])})
			}
		}
		rest = more
	}
}
