package inode

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestMounts: no line of the table is too long for the others to be read, and one of which only the options are too long is read too.
func TestMounts(t *testing.T) {
	long := strings.Repeat("/"+strings.Repeat(`\040`, 255), 127)
	endless := strings.Repeat("/d", longestLine)
	table := `1 0 8:1 / / rw,relatime - ext4 /dev/root rw
2 1 0:30 / /srv/a\040b\134\011\012\043 rw shared:1 master:2 - fuse.bindfs none rw
3 1 0:31 ` + long + " " + long + ` rw - overlay o\040verlay rw
4 1 0:32 / ` + endless + ` rw - overlay overlay rw
5 1 0:33 / /merged rw - overlay overlay rw,lowerdir=` + endless + `
6 1 0:34 / /last rw - tmpfs  rw
`
	list, err := Mounts(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	deep := strings.ReplaceAll(long, `\040`, " ")
	if want := []MountPoint{
		{1, "/", "ext4", "/dev/root"}, {2, "/srv/a b\\\t\n#", "fuse.bindfs", "none"}, {3, deep, "overlay", "o verlay"},
		{5, "/merged", "overlay", "overlay"}, {6, "/last", "tmpfs", ""},
	}; !slices.Equal(list, want) {
		t.Errorf("%d mounts: %.1000s", len(list), fmt.Sprintf("%+v", list))
	}
}
