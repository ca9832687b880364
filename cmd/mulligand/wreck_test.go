package main

import (
	"os"
	"path/filepath"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit"
)

// plant makes a workspace with everything that a tree can hold. $1 is the
// number of files, $2 the size of the large one in MB, $3 a folder outside.
const plant = `
for ((d = 0; d * 100 < $1; d++)); do
	mkdir -p src/d$d
	for ((f = 0; f < 100; f++)); do echo "file $f of $d" >src/d$d/f$f.txt; done
done
git init -q .
echo 'ignored/' >.gitignore
mkdir ignored && echo secret >ignored/token && chmod 600 ignored/token
git add .gitignore src/d0 && git commit -qm one
echo changed >>src/d0/f1.txt                       # uncommitted
echo staged >>src/d0/f2.txt && git add src/d0/f2.txt
git init -q vendor/nested && echo n >vendor/nested/n && git -C vendor/nested add n && git -C vendor/nested commit -qm nested
git init -q vendor/unborn && echo u >vendor/unborn/u  # a repository without a commit
ln -s "$3/outside.txt" to-outside
ln -s "$3" to-outside-folder
ln -s nowhere dangling
head -c $(($2 * 1048576)) /dev/urandom >large.bin
echo nl >$'new\nline' && echo bytes >$'bytes-\xff\xfe' && echo space >' lead and trail '
echo none >mode-0000 && chmod 0000 mode-0000
printf '#!/bin/sh\n' >setuid && chmod 4755 setuid
echo linked >hard-a && ln hard-a hard-b && mkdir links && ln hard-a links/hard-c
mkdir -p empty/deeper && chmod 0700 empty
mkdir sticky && chmod 1777 sticky
mkfifo fifo
truncate -s 50M sparse && echo tail >>sparse
mkdir to-be-file && echo x >to-be-file/x
echo y >to-be-folder
touch -d '2001-02-03 04:05:06.789' src/d0/f3.txt src/d1
`

// wreck does to it what an agent on a bad day does.
const wreck = `
echo edited >>src/d0/f4.txt
printf X | dd of=large.bin bs=1 seek=4096 conv=notrunc status=none
rm -r src/d1 ignored empty
mv src/d2 src/renamed
chmod 000 src/d3 && chmod 755 setuid && chmod 644 mode-0000
echo new >new && mkdir -p newdir/sub && echo new >newdir/sub/file
rm -r to-be-file && echo now-a-file >to-be-file
rm to-be-folder && mkdir to-be-folder && echo z >to-be-folder/z
rm dangling && echo real >dangling
rm fifo && ln -s src fifo
echo more >>hard-b && rm links/hard-c && echo alone >links/hard-c
rm -f $'new\nline' && echo other >$'bytes-\xff\xfe'
echo hole >sparse
git commit -qam 'a commit' && git reset -q --hard HEAD~1
rm -rf vendor/nested/.git vendor/unborn
ln -sfn /etc to-outside-folder
chown 1234:5678 src/d4 src/d4/f1.txt 2>/dev/null || true
touch -d '2002-02-02' src/d5/f5.txt
`

// testWreck is the promise: whatever was there is there again, and whatever
// was made of it can be had back too.
func testWreck(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	count, mb := "4000", "20"
	if testkit.Long() {
		count, mb = "20000", "300"
	}
	d := startDaemon(t)
	ws, outside := filepath.Join(d.dir, "ws"), filepath.Join(d.dir, "outside")
	for _, dir := range []string{ws, outside} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "outside.txt"), []byte("not ours"), 0o644); err != nil {
		t.Fatal(err)
	}
	shell(t, ws, plant, count, mb, outside)
	d.must("app", "add", "--slug", "wreck", "--dir", ws)

	git := func() string {
		return shell(t, ws, `git status --porcelain=v2 --branch; git log --oneline --all; git -C vendor/nested log --oneline`)
	}
	gitPlanted := git() // first: it may refresh the index
	planted, away := listing(t, ws), listing(t, outside)
	cp := ask[ipc.Checkpoint](d, "create", "--app", "wreck")
	sameListing(t, "after the checkpoint", listing(t, ws), planted)
	shell(t, ws, wreck)
	wrecked := listing(t, ws)

	back := ask[ipc.RollbackResult](d, "rollback", string(cp.ID), "--app", "wreck")
	sameListing(t, "after the rollback", listing(t, ws), planted)
	if got := git(); got != gitPlanted {
		t.Errorf("git says\n%s\nand said\n%s", got, gitPlanted)
	}
	sameListing(t, "outside", listing(t, outside), away)
	if !back.RolledBack || !back.Verification.Match || back.ChangesTotal == 0 {
		t.Errorf("receipt: %+v", back)
	}
	if *cp.FilesHash != back.Verification.Layers["files"].PostStateHash {
		t.Errorf("the receipt's hash is %s, the checkpoint's %s", back.Verification.Layers["files"].PostStateHash, *cp.FilesHash)
	}

	ask[ipc.RollbackResult](d, "rollback", string(back.SafetyCheckpoint.ID), "--app", "wreck")
	sameListing(t, "after the roll forward", listing(t, ws), wrecked)
	ask[ipc.RollbackResult](d, "rollback", string(cp.ID), "--app", "wreck")
	sameListing(t, "after the second rollback", listing(t, ws), planted)
	sameListing(t, "outside, at the end", listing(t, outside), away)
}
