package files

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/inode"
	"mulligan/testkit"
)

// run runs a shell script in dir and gives what it printed.
func run(t testing.TB, dir, script string) string {
	t.Helper()
	c := exec.Command("/bin/bash", "-euc", script)
	c.Dir = dir
	c.Env = append(os.Environ(), "LC_ALL=C", "HOME="+dir+"/..", "GIT_CONFIG_NOSYSTEM=1", "GIT_OPTIONAL_LOCKS=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b.c", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b.c")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// zoo makes a workspace with one of everything, and n plain files.
func zoo(t testing.TB, dir string, n int, huge int64) {
	t.Helper()
	r := testkit.Rand(t)
	for i := range n {
		p := fmt.Sprintf("%s/src/%02x/%d/f%d.txt", dir, i%97, i%5, i)
		if i < 485 {
			must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		}
		must(t, os.WriteFile(p, random(r, 20+r.IntN(400)), 0o644))
	}
	for _, name := range []string{"a\nb", "\xff\xfe\x80", "-rf", " ", "tab\t", "\\", "'\"$x", "☃", strings.Repeat("n", 255)} {
		write(t, dir+"/names/"+name, "odd name")
	}
	run(t, dir, `
		git init -q . && printf '*.tmp\nignored/\n' > .gitignore && git add .gitignore src/00 && git commit -qm one
		mkdir ignored; echo i > ignored/x; echo t > some.tmp
		echo staged > staged; git add staged; echo changed >> src/00/0/f0.txt
		mkdir nested && cd nested && git init -q . && echo n > n && git add n && git commit -qm n && echo dirty >> n && cd ..
		mkdir bare && cd bare && git init -q . && echo x > never-committed && cd ..
		mkdir links; ln -s /etc/passwd links/outside; ln -s nowhere links/dangling; ln -s ../src links/inside; ln -s . links/loop
		mkdir -p empty/a/b; mkfifo fifo; mkdir modes
		echo 0 > modes/none; chmod 0 modes/none; echo s > modes/suid; chmod 6755 modes/suid
		mkdir modes/sticky modes/closed; echo c > modes/closed/c; chmod 1777 modes/sticky; chmod 0 modes/closed
		echo hard > hard1; ln hard1 hard2; mkdir deep; ln hard1 deep/hard3
		echo out > ../outside; ln ../outside shared
		echo v > swap; mkdir dirswap; echo in > dirswap/in
		: > zero
		chmod 2750 names; touch -d 1999-12-31T23:59:59.123456789 zero names
		touch -h -d 2001-02-03T04:05:06.789012345 links/dangling; touch -d 2002-01-01 .`)
	f, err := os.Create(dir + "/huge")
	must(t, err)
	for off := int64(0); off < huge; off += 1 << 20 {
		_, err := f.Write(random(r, 1<<20))
		must(t, err)
	}
	must(t, f.Close())
	f, err = os.Create(dir + "/sparse")
	must(t, err)
	_, err = f.WriteAt([]byte("far out"), 50<<20)
	must(t, err)
	must(t, f.Truncate(80<<20))
	must(t, f.Close())
	must(t, unix.Mknod(dir+"/socket", unix.S_IFSOCK|0o700, 0))
	attributes(t, dir)
	must(t, os.Chtimes(dir, stamp, stamp))
}

// attributes sets what only some users and filesystems can.
func attributes(t testing.TB, dir string) {
	acl := "\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x04\x00\x39\x30\x00\x00" +
		"\x04\x00\x04\x00\xff\xff\xff\xff" + "\x10\x00\x04\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff"
	must(t, os.Mkdir(dir+"/acl", 0o755))
	must(t, unix.Setxattr(dir+"/zero", "user.note", []byte("\x00note"), 0))
	must(t, unix.Setxattr(dir+"/acl", "system.posix_acl_default", []byte(acl), 0))
	write(t, dir+"/acl/inherits", "an ACL")
	must(t, unix.Setxattr(dir+"/staged", "system.posix_acl_access", []byte(acl), 0))
	if os.Geteuid() != 0 {
		return
	}
	must(t, unix.Mknod(dir+"/device", unix.S_IFCHR|0o640, int(unix.Mkdev(1, 3))))
	write(t, dir+"/capable", "x")
	must(t, os.Chown(dir+"/capable", 1234, 2345))
	must(t, unix.Setxattr(dir+"/capable", "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	must(t, os.Lchown(dir+"/links/dangling", 1, 2))
	must(t, os.Chown(dir+"/modes/suid", 65534, 65534))
	must(t, os.Chmod(dir+"/modes/suid", 0o755|os.ModeSetuid|os.ModeSetgid))
	must(t, unix.Lsetxattr(dir+"/links/dangling", "trusted.t", []byte("of a link"), 0))
}

// wreck does to the zoo what an agent on a bad day might.
const wreck = `
	find src -name 'f*7.txt' -delete
	find src -name 'f*3.txt' -exec chmod 600 {} +
	for f in src/1*/2/f*.txt; do echo more >> $f; done
	mv src/20 src/moved; mv src/21/1 src/22/one
	rm -rf src/30; mkdir src/30; echo new > src/30/new
	rm -rf src/31; echo 'a file now' > src/31
	rm swap; mkdir swap; echo deep > swap/deep; rm -rf dirswap; ln -s /etc dirswap
	mkdir -p brand/new/tree; for i in $(seq 200); do echo $i > brand/new/tree/$i; done
	git add -A src/00 && git commit -qm two && git reset -q --hard HEAD~1
	cd nested && git commit -qam n2 && cd ..
	rm -rf bare/.git
	rm links/outside; echo mine > links/outside; ln -sfn /tmp links/dangling; rm fifo; mkfifo -m 600 fifo
	chmod 700 modes/closed modes/none; rm modes/suid; echo 1 > modes/closed/more; rm -rf empty
	rm hard2; echo own > hard2; ln hard1 hard4; echo changed >> deep/hard3
	rm shared; echo not shared > shared
	printf XX | dd of=huge bs=1 seek=1500000 conv=notrunc status=none
	printf YY | dd of=sparse bs=1 seek=70000000 conv=notrunc status=none
	rm -f socket device capable; echo plain > socket
	rm names/*; echo other > names/other; chmod 755 names
	touch zero; chmod 711 .`

// testWreck is the promise: everything comes back, and goes forward again.
func testWreck(t *testing.T) {
	testkit.Need(t, "root")
	n, huge := 2_000, int64(20<<20)
	if long() {
		n, huge = 20_000, 300<<20
	}
	s := newSite(t)
	zoo(t, s.dir, n, huge)
	git := `for d in . nested; do git -C $d status --porcelain=v2 --ignored --untracked-files=all | { grep -v bare || true; }; git -C $d log; git -C $d fsck; done`
	before, gitBefore := listing(t, s.dir), run(t, s.dir, git)
	good := s.capture(t)
	kept := inodes(t, s.dir)

	run(t, s.dir, wreck)
	wrecked, gitWrecked := listing(t, s.dir), run(t, s.dir, git)
	bad := s.restore(t, good.ID)
	same(t, "restored", listing(t, s.dir), before)
	if got := run(t, s.dir, git); got != gitBefore {
		t.Errorf("git says something else after the restore:\n%s\nbefore:\n%s", got, gitBefore)
	}
	if b, err := os.ReadFile(s.dir + "/../outside"); err != nil || string(b) != "out\n" {
		t.Errorf("a file outside of the workspace changed: %q %v", b, err)
	}
	untouched(t, s.dir, kept)
	var st unix.Stat_t
	must(t, unix.Stat(s.dir+"/sparse", &st))
	if st.Blocks*512 > 4<<20 {
		t.Errorf("the sparse file takes %d bytes on disk", st.Blocks*512)
	}

	s.restore(t, bad.ID)
	same(t, "forward again", listing(t, s.dir), wrecked)
	if got := run(t, s.dir, git); got != gitWrecked {
		t.Errorf("git says something else after going forward:\n%s\nbefore:\n%s", got, gitWrecked)
	}
	s.open(t)
	s.restore(t, good.ID)
	same(t, "restored by a new process", listing(t, s.dir), before)
}

func inodes(t testing.TB, dir string) map[string]inode.Stat {
	out := map[string]inode.Stat{}
	for _, p := range []string{"src/02/2/f2.txt", "src/05/1/f296.txt", "nested/.git/HEAD", ".gitignore"} {
		if st, err := inode.StatAt(unix.AT_FDCWD, dir+"/"+p); err == nil {
			out[p] = st
		}
	}
	if len(out) < 3 {
		t.Fatal("too few files to look at")
	}
	return out
}

// untouched fails if a file that never changed was replaced or even written to.
func untouched(t testing.TB, dir string, was map[string]inode.Stat) {
	for p, want := range was {
		got, err := inode.StatAt(unix.AT_FDCWD, dir+"/"+p)
		must(t, err)
		if !got.Same(want) {
			t.Errorf("%s never changed and was touched", p)
		}
	}
}
