package daemon_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/ipc"
	"mulligan/ipc/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// TestFlippedByte changes single bytes of what is stored: contents of files and
// databases, manifests and dumps. A byte that a checkpoint needs is found by
// verify, which names the checkpoint and the layer, and by a rollback before it
// touches anything.
func TestFlippedByte(t *testing.T) {
	t.Parallel()
	flips := 8
	if long() {
		flips = 1500
	}
	w := newWorld(t, pgtest.Start(t, pgtest.Options{Dir: quickDir(t)}))
	target := w.twoPoints(t)
	sh(t, `mkdir "$1/template" && cp -a "$1/ws" "$1/state" "$1/template"`, w.dir)
	tally := map[string]int{}
	for range flips {
		path, at := pickByte(t, filepath.Join(w.state(), "store"))
		flip(t, path, at)
		where := fmt.Sprintf("byte %d of %s", at, strings.TrimPrefix(path, w.state()))
		result := w.flipped(t, target, where)
		tally[result]++
		if t.Failed() {
			return
		}
		w.set(t, "two")
		sh(t, `rm -rf "$1/ws" "$1/state" && cp -a "$1/template/ws" "$1/template/state" "$1"`, w.dir)
	}
	t.Logf("%d flips: %v", flips, tally)
	if tally["nobody's"] == flips {
		t.Error("no flip was found: what does this test flip?")
	}
}

// twoPoints makes a checkpoint of the state one and another of the state two,
// in which the app stays. Its program is let be.
func (w world) twoPoints(t *testing.T) (one ipc.CheckpointID) {
	t.Helper()
	d := w.open(t)
	defer w.close(t, d)
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}}); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two"} {
		w.set(t, word)
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Notes: word, Pinned: true})
		if err != nil {
			t.Fatal(err)
		}
		if word == "one" {
			one = cp.ID
		}
	}
	return one
}

// pickByte picks one byte of what is in a folder.
func pickByte(t *testing.T, dir string) (path string, at int64) {
	t.Helper()
	var paths []string
	var sizes []int64
	total := int64(0)
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Size() > 0 {
			paths, sizes, total = append(paths, p), append(sizes, info.Size()), total+info.Size()
		}
		return err
	})
	if err != nil || total == 0 {
		t.Fatalf("%d bytes are stored, %v", total, err)
	}
	at = testkit.Rand(t, "byte").Int64N(total)
	i := 0
	for ; at >= sizes[i]; i++ {
		at -= sizes[i]
	}
	return paths[i], at
}

// flip changes a byte, and gives what undoes that.
func flip(t *testing.T, path string, at int64) (back func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	was := b
	b[0] ^= byte(1 + testkit.Rand(t, "flip").IntN(255))
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	return func() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt(was[:], at)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestFlippedByteOfCluster does the same to a cluster's log, between the base copy
// and the checkpoints that rest on it, and to the base copy.
func TestFlippedByteOfCluster(t *testing.T) {
	t.Parallel()
	flips := 1
	if long() {
		flips = 60
	}
	w := newWorldOfCluster(t)
	d := w.open(t)
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Notes: "zero", Pinned: true}); err != nil {
		t.Fatal(err)
	}
	w.close(t, d)
	from := w.newSegment(t)
	target := w.twoPoints(t)
	log, begin, end := w.archived(t, from)
	tally, rnd := map[string]int{}, testkit.Rand(t)
	for n := range flips {
		path, at := log, begin+rnd.Int64N(end-begin)
		if n%4 == 3 {
			path, at = pickByte(t, filepath.Join(log, "../../bases"))
		}
		back := flip(t, path, at)
		tally[w.flipped(t, target, fmt.Sprintf("byte %d of %s", at, filepath.Base(path)))]++
		back()
		if t.Failed() {
			return
		}
		w.set(t, "two")
	}
	t.Logf("%d flips: %v", flips, tally)
	if n := tally["nobody's"]; n > 1+flips/4 { // what fills a record up to eight bytes is nobody's
		t.Error("hardly a flip was found")
	}
}

// newSegment begins a new file of the cluster's log, and gives the place.
func (w world) newSegment(t *testing.T) (lsn string) {
	t.Helper()
	w.ask(t, "SELECT pg_switch_wal()::text", &lsn)
	w.ask(t, "SELECT pg_current_wal_insert_lsn()::text", &lsn)
	return lsn
}

// archived has the server archive the log from a place on, and gives the file with
// the bytes that were written to it since.
func (w world) archived(t *testing.T, from string) (path string, begin, end int64) {
	t.Helper()
	var dir, first, last string
	w.ask(t, "SELECT current_setting('data_directory')", &dir)
	w.ask(t, "SELECT file_name, file_offset FROM pg_walfile_name_offset('"+from+"')", &first, &begin)
	w.ask(t, "SELECT file_name, file_offset FROM pg_walfile_name_offset(pg_current_wal_insert_lsn())", &last, &end)
	if first != last || end <= begin {
		t.Fatalf("the log goes from %s:%d to %s:%d", first, begin, last, end)
	}
	w.newSegment(t)
	path = filepath.Join(dir+".mulligan", "archive", first)
	waitFor(t, "the log is archived", func() bool { _, err := os.Stat(path); return err == nil })
	return path, begin, end
}

func (w world) ask(t *testing.T, query string, into ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), w.pg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), query).Scan(into...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// flipped says whether the damage was found, having checked how.
func (w world) flipped(t *testing.T, target ipc.CheckpointID, where string) string {
	t.Helper()
	d, err := daemon.Open(t.Context(), w.options())
	if err != nil {
		if errs.KindOf(err) != errs.Corrupt {
			t.Errorf("%s: the daemon does not start: %v", where, err)
		}
		return "found at start"
	}
	defer w.close(t, d)
	found := w.verified(t, d, where)
	before := w.touched(t)
	res, err := d.Rollback(t.Context(), root, "shop", target, ipc.RollbackRequest{}, nil)
	switch {
	case err == nil:
		if got := w.word(t); got != "one" {
			t.Errorf("%s: the rollback is to %q", where, got)
		}
		if slices.Contains(found, target) {
			return "found by verify; not needed by the rollback"
		}
		if len(found) > 0 {
			return "found, in the other checkpoint"
		}
		w.allRight(t, d, where)
		return "nobody's"
	case errs.KindOf(err) != errs.Corrupt || !strings.Contains(err.Error(), string(target)):
		t.Errorf("%s: the rollback fails with %s: %v", where, errs.KindOf(err), err)
	case !slices.Contains(found, target):
		t.Errorf("%s: the rollback finds what verify does not: %v", where, err)
	}
	for _, s := range res.Stages {
		if s.Stage != ipc.StageSafety && s.Status != ipc.StageSkipped {
			t.Errorf("%s: found only in %s: %v", where, s.Stage, err)
		}
	}
	if after := w.touched(t); !slices.Equal(after, before) {
		t.Errorf("%s: the workspace was touched:\n%q\n%q", where, before, after)
	}
	if got := w.word(t); got != "two" {
		t.Errorf("%s: the app is in state %q", where, got)
	}
	return "found"
}

// allRight goes to every checkpoint: what verify does not see is in none of them.
func (w world) allRight(t *testing.T, d *daemon.Daemon, where string) {
	t.Helper()
	for _, cp := range listed(t, d) {
		if cp.Trigger != ipc.TriggerManual {
			continue
		}
		if _, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil); err != nil {
			t.Errorf("%s: not found by verify, and found by a rollback: %v", where, err)
		}
		if got := w.word(t); got != *cp.Notes {
			t.Errorf("%s: a rollback to %q is to %q", where, *cp.Notes, got)
		}
	}
}

// verified lists the checkpoints that verify finds damaged.
func (w world) verified(t *testing.T, d *daemon.Daemon, where string) (damaged []ipc.CheckpointID) {
	t.Helper()
	for _, cp := range listed(t, d) {
		res, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Full)
		if err != nil {
			t.Errorf("%s: %v", where, err)
		}
		if res.OK {
			continue
		}
		damaged = append(damaged, cp.ID)
		for _, p := range res.Problems {
			if res.CheckpointID != cp.ID || !slices.Contains([]string{"files", "db:shop", "db:main"}, p.Layer) || p.Message == "" {
				t.Errorf("%s: %+v", where, res)
			}
		}
	}
	return damaged
}

// touched is what shows that something in the workspace was written to.
func (w world) touched(t *testing.T) (lines []string) {
	t.Helper()
	err := filepath.WalkDir(w.ws(), func(p string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(p, &st)
		}
		lines = append(lines, fmt.Sprintf("%s %d %o %d %d.%d %d.%d", p, st.Ino, st.Mode, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}
