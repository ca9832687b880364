package walk

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/filetime"
)

// FuzzCache: no bytes make the decoder of the stat cache stumble.
func FuzzCache(f *testing.F) {
	k := record{size: 3, link: "x"}
	f.Add(k.append(nil, inode.ID{Dev: 1, Ino: 2}))
	f.Fuzz(func(t *testing.T, data []byte) {
		cached, err := decodeCache(data)
		if err != nil && cached != nil {
			t.Fatalf("%v and an error: %v", cached, err)
		}
	})
}

// TestCache: what did not change is not read again, by this process or the
// next; what seems unchanged but is not trusted, is.
func TestCache(t *testing.T) {
	dir := t.TempDir()
	noError(t, os.WriteFile(dir+"/old", []byte("content"), 0o644))
	st, err := inode.StatAt(unix.AT_FDCWD, dir+"/old")
	noError(t, err)
	e := manifest.Entry{Hash: snap.Hash{1}}
	c := LoadCache(dir)
	read := time0(st.Ctime).Add(filetime.Tick)
	if c.Add(st, &e, read); c.Find("", st, &e) {
		t.Error("a file changed within the clock's tick is trusted")
	}
	if c.Add(st, &e, read.Add(filetime.Coarsest)); !c.Find("", st, &e) {
		t.Error("a file that is long quiet is not remembered")
	}
	noError(t, c.Save(dir))
	if !LoadCache(dir).Find("", st, &e) || e.Hash != (snap.Hash{1}) {
		t.Error("the cache did not survive")
	}
	b, err := os.ReadFile(dir + "/" + cacheName)
	noError(t, err)
	b[len(b)/2] ^= 1
	noError(t, os.WriteFile(dir+"/"+cacheName, b, 0o600))
	if len(LoadCache(dir).known) > 0 {
		t.Error("a damaged cache was believed")
	}
}

// TestCacheRetain: after a walk of everything the cache has what this walk, or one that began meanwhile, met, and no file that is gone.
func TestCacheRetain(t *testing.T) {
	dir := t.TempDir()
	c := LoadCache(dir)
	e := manifest.Entry{Hash: snap.Hash{1}}
	stat := map[string]inode.Stat{}
	for _, name := range []string{"gone", "met", "met by the other", "new"} {
		noError(t, os.WriteFile(dir+"/"+name, []byte(name), 0o644))
		st, err := inode.StatAt(unix.AT_FDCWD, dir+"/"+name)
		noError(t, err)
		if stat[name] = st; name != "new" {
			c.Add(st, &e, time0(st.Ctime).Add(filetime.Coarsest+filetime.Tick))
		}
	}
	walk := c.begin()
	c.Find("", stat["met"], &e)
	c.begin()
	c.Find("", stat["met by the other"], &e)
	c.Add(stat["new"], &e, time0(stat["new"].Ctime).Add(filetime.Coarsest+filetime.Tick))
	c.retain(walk)
	for name, st := range stat {
		if got := c.Find("", st, &e); got != (name != "gone") {
			t.Errorf("%s: remembered: %v", name, got)
		}
	}
}

func time0(t inode.Time) time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }

func TestReliable(t *testing.T) {
	at := func(sec int64, nsec uint32) inode.Time { return inode.Time{Sec: sec, Nsec: nsec} }
	fine := at(990, 123456789)
	for _, x := range []struct {
		what         string
		ctime, mtime inode.Time
		read         time.Time
		want         bool
	}{
		{"fine, at once", at(1000, 123456789), fine, time.Unix(1000, 130000000), false},
		{"fine, later", at(1000, 123456789), fine, time.Unix(1000, 140000000), true},
		{"an odd whole second", at(1001, 0), fine, time.Unix(1001, 990000000), false},
		{"an odd whole second, later", at(1001, 0), fine, time.Unix(1002, 20000000), true},
		{"an even whole second", at(1000, 0), fine, time.Unix(1001, 990000000), false},
		{"an even whole second, later", at(1000, 0), fine, time.Unix(1002, 20000000), true},
		{"hundredths", at(1000, 120000000), fine, time.Unix(1000, 139000000), false},
		{"hundredths, later", at(1000, 120000000), fine, time.Unix(1000, 141000000), true},
		{"no ctime, coarse mtime", at(0, 0), at(1001, 0), time.Unix(1001, 500000000), false},
		{"a chosen mtime", at(1000, 123456789), at(5000, 0), time.Unix(1000, 140000000), true},
		{"a ctime ahead", at(1100, 1), fine, time.Unix(1000, 140000000), false},
	} {
		if got := Reliable(inode.Stat{Ctime: x.ctime, Mtime: x.mtime}, x.read); got != x.want {
			t.Errorf("%s: %v", x.what, got)
		}
	}
}
