package app

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/privsep"
)

// TestFolderOfOlderRecord: an older daemon noted a fork's folder by the numbers of its device and its inode. The device's number may be another one
// since.
func TestFolderOfOlderRecord(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "1")
	if _, err := makeFolder.Call(t.Context(), privsep.Self, path); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		noted string
		other bool
	}{
		{fmt.Sprintf("%d:%d", st.Dev, st.Ino), false},
		{fmt.Sprintf("%d:%d", st.Dev+1, st.Ino), false},
		{fmt.Sprintf("%d:%d1", st.Dev, st.Ino), true},
		{fmt.Sprintf("%d born 1.000000000", st.Ino), true},
	} {
		found, err := findFolder.Call(t.Context(), privsep.Self, forkFolder{path, c.noted})
		if err != nil || !found.There || found.Other != c.other {
			t.Errorf("%q: %+v, %v", c.noted, found, err)
		}
	}
}
