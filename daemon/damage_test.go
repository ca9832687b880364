package daemon_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// testFlippedByte changes single bytes of what is stored: contents of files and
// databases, manifests and dumps. Each byte that a checkpoint needs is found by
// verify, which names the checkpoint and the layer, and by a rollback before it
// touches anything. Free are the bytes of stretches that no checkpoint rests on; see
// stretches. A few of those are changed as well, and harm nothing.
func testFlippedByte(t *testing.T) {
	t.Parallel()
	flips, free := 6, 1
	if long() {
		flips, free = 600, 150
	}
	w := newWorld(t, pgtest.Start(t, pgtest.Options{Dir: quickDir(t)}))
	target, _ := w.twoPoints(t)
	needed, spare := stretches(t, filepath.Join(w.state(), "store"))
	sh(t, `mkdir "$1/template" && cp -a "$1/ws" "$1/state" "$1/template"`, w.dir)
	tally := map[string]int{}
	rnd := testkit.Rand(t)
	for i := range flips + free {
		of := needed
		if i >= flips {
			of = spare
		}
		path, at, what := pickIn(rnd, of)
		flip(t, path, at)
		where := fmt.Sprintf("byte %d of %s (%s)", at, filepath.Base(path), what)
		result := w.flipped(t, target, where)
		tally[result]++
		if i < flips && result == "nobody's" {
			t.Errorf("%s: a checkpoint needs it, and nobody found it", where)
		}
		if t.Failed() {
			return
		}
		w.set(t, "two")
		sh(t, `rm -rf "$1/ws" "$1/state" && cp -a "$1/template/ws" "$1/template/state" "$1"`, w.dir)
	}
	testkit.Tally(t, "flips", flips+free)
	t.Logf("%d flips in what checkpoints need, %d elsewhere: %v", flips, free, tally)
}

// stretch is a part of a file that is one thing.
type stretch struct {
	path       string
	begin, end int64
	what       string
}

// stretches takes the segments of a store apart, as snap/cas/DESIGN.md has their format: into
// what the snapshots of checkpoints need, and what is spare. Spare are the head of a segment; the
// lists of roots and their changes, each of which is there twice; objects that no root leads to; and
// the description of checkpoints, of which mulligan.db has the original.
func stretches(t *testing.T, dir string) (needed, spare []stretch) {
	t.Helper()
	s, err := cas.Open(dir, cas.Options{})
	if err != nil {
		t.Fatal(err)
	}
	live := map[cas.Hash]string{} // the first root that leads to an object
	for _, r := range s.Roots("") {
		if !strings.HasPrefix(r.Name, "record/") {
			reach(t, s, r.Hash, r.Name, live)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(dir + "/*.seg")
	if err != nil || len(paths) == 0 || len(live) == 0 {
		t.Fatalf("segments %v, %v, with %d objects", paths, err, len(live))
	}
	found := 0
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		const head, record = 32, 64
		spare = append(spare, stretch{path, 0, head, "the segment's head"})
		for at := int64(head); at < int64(len(data)); {
			kind, size := data[at+8], record+int64(binary.LittleEndian.Uint32(data[at+12:]))
			part := stretch{path, at, at + size, fmt.Sprintf("record of kind %d", kind)}
			if of := live[cas.Hash(data[at+24:at+56])]; (kind == 1 || kind == 2) && of != "" {
				part.what += " of " + of
				needed = append(needed, part)
				found++
			} else {
				spare = append(spare, part)
			}
			at += size
		}
	}
	if found != len(live) {
		t.Fatalf("the segments have %d of %d objects", found, len(live))
	}
	return needed, spare
}

// reach adds to live what an object of a root leads to.
func reach(t *testing.T, s *cas.Store, h cas.Hash, root string, live map[cas.Hash]string) {
	t.Helper()
	if live[h] != "" {
		return
	}
	live[h] = root
	if _, refs, err := s.Node(h); err == nil { // else it is a blob
		for _, r := range refs {
			reach(t, s, r, root, live)
		}
	}
}

// pickIn draws one of the bytes of some stretches.
func pickIn(rnd *rand.Rand, of []stretch) (path string, at int64, what string) {
	total := int64(0)
	for _, p := range of {
		total += p.end - p.begin
	}
	n := rnd.Int64N(total)
	for _, p := range of {
		if n < p.end-p.begin {
			return p.path, p.begin + n, p.what
		}
		n -= p.end - p.begin
	}
	panic("unreachable")
}

// twoPoints makes a checkpoint of the state one and another of the state two,
// in which the app stays. Its program is let be. end is where the second ends in the log of the app's cluster, if it has one.
func (w world) twoPoints(t *testing.T) (one ipc.CheckpointID, end string) {
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
		for _, db := range cp.DBSnapshots {
			if db.Database == "main" {
				_, end, _ = strings.Cut(db.Position, ":") // after the number of the timeline
			}
		}
	}
	return one, end
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

// testFlippedByteOfCluster does the same to a cluster's log, between the base copy
// and the checkpoints that rest on it, and to the base copy. Free are the bytes that fill a record of the
// log, or the head of one of its pages, up to eight.
func testFlippedByteOfCluster(t *testing.T) {
	t.Parallel()
	flips := 2
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
	target, to := w.twoPoints(t)
	log, begin, end := w.archived(t, from, to)
	records := logRecords(t, log, begin, end)
	tally, rnd := map[string]int{}, testkit.Rand(t)
	for n := range flips {
		path, at, what := pickIn(rnd, records)
		if n%2 == 1 {
			path, at = pickByte(t, filepath.Join(log, "../../bases"))
			what = "of a base copy"
		}
		where := fmt.Sprintf("byte %d of %s (%s)", at, filepath.Base(path), what)
		back := flip(t, path, at)
		result := w.flipped(t, target, where)
		tally[result]++
		if result == "nobody's" {
			t.Errorf("%s: checkpoints rest on it, and nobody found it", where)
		}
		back()
		if t.Failed() {
			return
		}
		w.set(t, "two")
	}
	testkit.Tally(t, "flips", flips)
	t.Logf("%d flips: %v", flips, tally)
}

// logRecords takes a file of a cluster's log apart, from begin to end: into the records, without
// what fills each up to eight bytes, and the heads of pages that lie in them.
func logRecords(t *testing.T, path string, begin, end int64) (list []stretch) {
	t.Helper()
	const page, head, headUsed = 8192, 24, 20
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := begin; at < end; {
		if at%page == 0 { // a record never begins in a page's head
			list = append(list, stretch{path, at, at + headUsed, "page's head"})
			at += head
		}
		left := int64(binary.LittleEndian.Uint32(data[at:]))
		if left < 24 || left > end-begin {
			t.Fatalf("there is no record at byte %d of %s", at, path)
		}
		for {
			n := min(left, page-at%page)
			list = append(list, stretch{path, at, at + n, "record of the log"})
			at += n
			if left -= n; left == 0 {
				break
			}
			list = append(list, stretch{path, at, at + headUsed, "page's head"})
			at += head
		}
		at = (at + 7) / 8 * 8
	}
	return list
}

// newSegment begins a new file of the cluster's log, and gives the place.
func (w world) newSegment(t *testing.T) (lsn string) {
	t.Helper()
	w.ask(t, "SELECT pg_switch_wal()::text", &lsn)
	w.ask(t, "SELECT pg_current_wal_insert_lsn()::text", &lsn)
	return lsn
}

// archived has the server archive the log from one place to another, and gives the file with
// these bytes. The server may have written more on its own, on which no checkpoint rests.
func (w world) archived(t *testing.T, from, to string) (path string, begin, end int64) {
	t.Helper()
	var dir, first, last string
	w.ask(t, "SELECT current_setting('data_directory')", &dir)
	w.ask(t, "SELECT file_name, file_offset FROM pg_walfile_name_offset('"+from+"')", &first, &begin)
	w.ask(t, "SELECT file_name, file_offset FROM pg_walfile_name_offset('"+to+"')", &last, &end)
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
