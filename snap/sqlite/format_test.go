package sqlite

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/snap"
	"mulligan/testkit"
)

// What the driver folds is, byte for byte, what SQLite makes of the same files.
func TestFoldsAsSQLite(t *testing.T) {
	c := startClient(t)
	for seed := int64(1); seed <= 24; seed++ {
		s := newSubject(t, c, "DELETE")
		c.do(t, order{Path: s.path(), SQL: change(t, seed)})
		s.leave(t, []string{"log", "journal"}[seed%2])
		got := s.fold(t)
		// A reader is enough: it plays a journal back, and the last one to
		// close copies the log to the database.
		c.do(t, order{Path: s.path(), SQL: []string{"SELECT * FROM sqlite_schema", "PRAGMA wal_checkpoint(TRUNCATE)"}})
		want, err := os.ReadFile(s.path())
		check(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("seed %d: %d bytes folded, SQLite makes %d others of them", seed, len(got), len(want))
		}
	}
}

// The same with the C library, where its shell is installed.
func TestFoldsAsShell(t *testing.T) {
	testkit.Need(t, "sqlite3")
	for _, how := range []string{"log", "journal"} {
		s := newSubject(t, startClient(t), "DELETE")
		s.leave(t, how)
		got := s.fold(t)
		out, err := exec.Command("sqlite3", s.path(), "SELECT count(*) FROM kv; PRAGMA wal_checkpoint(TRUNCATE);").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		want, err := os.ReadFile(s.path())
		check(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: sqlite3 makes something else of the files", how)
		}
	}
}

// fold reads the live state as a capture does.
func (s *subject) fold(t *testing.T) []byte {
	t.Helper()
	l, err := s.driver.openLive(t.Context(), false)
	check(t, err)
	var all []byte
	_, _, err = l.readStateWith(t.Context(), readAll, func(p []byte) (snap.Hash, error) {
		all = append(all, p...)
		return sum(p)
	})
	check(t, err)
	check(t, l.close())
	return all
}

func TestFilesAndHeader(t *testing.T) {
	if got := Files("a/b.db"); !slices.Equal(got, []string{"a/b.db", "a/b.db-wal", "a/b.db-shm", "a/b.db-journal"}) {
		t.Errorf("Files: %v", got)
	}
	s := newSubject(t, startClient(t), "WAL")
	data, err := os.ReadFile(s.path())
	check(t, err)
	if !IsDatabase(bytes.NewReader(data)) {
		t.Error("a database is not taken for one")
	}
	for name, other := range map[string]string{"empty": "", "text": strings.Repeat("SQLite format 3", 20), "cut": string(data[:99])} {
		if IsDatabase(strings.NewReader(other)) {
			t.Errorf("%s is taken for a database", name)
		}
	}
}

// A database that is not there is a state too, and so is an empty one; the folder comes back.
func TestAbsent(t *testing.T) {
	c := startClient(t)
	s := emptySubject(t, c)
	states := map[snap.SnapshotID]string{}
	take := func(id snap.SnapshotID) {
		t.Helper()
		_, err := s.capture(t, id)
		check(t, err)
		states[id] = s.Fingerprint(t)
	}
	take("no-folder")
	check(t, os.Mkdir(filepath.Dir(s.path()), 0o710))
	take("no-file")
	check(t, os.WriteFile(s.path(), nil, 0o640))
	take("empty")
	c.do(t, order{Path: s.path(), SQL: append([]string{"PRAGMA journal_mode=WAL"}, change(t, 1)...)})
	take("full")
	n := 0
	for _, target := range []snap.SnapshotID{"no-file", "full", "empty", "no-folder", "full", "no-folder", "empty", "no-file"} {
		n++
		base := snap.SnapshotID(fmt.Sprintf("base-%d", n))
		before := s.Fingerprint(t)
		take(base)
		sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: target, Base: base})
		check(t, err)
		for _, step := range []struct {
			do   func() error
			want string
		}{
			{func() error { return sw.Commit(t.Context()) }, states[target]},
			{func() error { return sw.Undo(t.Context()) }, before},
		} {
			check(t, step.do())
			p, err := sw.Check(t.Context())
			check(t, err)
			if got := s.Fingerprint(t); !p.Match || got != step.want {
				t.Fatalf("to %s: %+v, the state is %q, want %q", target, p, got, step.want)
			}
		}
		check(t, sw.Finish(t.Context()))
		sw, err = s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-2", Target: target, Base: base})
		check(t, err)
		check(t, sw.Commit(t.Context()))
		check(t, sw.Finish(t.Context()))
		if info, err := os.Stat(filepath.Dir(s.path())); (target == "no-folder") != os.IsNotExist(err) || err == nil && info.Mode().Perm() != 0o710 {
			t.Fatalf("to %s: the folder is %v, %v", target, info, err)
		}
	}
}

// Of a large database, a capture reads what was written since the last one,
// and what it holds is the whole.
func testReadsWhatChanged(t *testing.T) {
	s := newSubject(t, startClient(t), "WAL")
	s.client.do(t, order{Path: s.path(), SQL: []string{
		"PRAGMA journal_mode=WAL",                              // the drawn changes may have left another mode, and the next client would write the file to change it
		"CREATE TABLE small(x)", "INSERT INTO small VALUES(1)", // of kv the large row may be any
		fmt.Sprintf("INSERT INTO kv(v) VALUES(randomblob(%d))", 2*mapCheck),
	}})
	for i, c := range []struct {
		write string // by a client that dies, so that it stays in the log
		fold  bool   // a client comes and goes, so that the log is copied to the file
		least int    // chunks that are read
		most  int
	}{
		{least: 257, most: 280},
		{least: 0, most: 1},
		{write: "UPDATE small SET x = 5", least: 1, most: 6},
		{write: "CREATE TABLE more(x)", least: 1, most: 8},
		{least: 1, most: 8},
		{fold: true, least: 257, most: 280},
		{write: "DELETE FROM kv WHERE length(v) > 1000000", least: 1, most: 280}, // the list of free pages: with small ones there is a part of it in each chunk
		{write: "VACUUM", least: 1, most: 20},
	} {
		if c.write != "" {
			startClient(t).do(t, order{Path: s.path(), SQL: []string{"PRAGMA journal_mode=WAL", c.write}, Die: true})
		}
		if c.fold {
			s.client.do(t, order{Path: s.path(), SQL: []string{"SELECT 1 FROM kv"}})
		}
		s.awaitReliableTimes(t)
		if n := s.toRead(t); n < c.least || n > c.most {
			t.Errorf("step %d: %d chunks are read, want %d to %d", i, n, c.least, c.most)
		}
		id := snap.SnapshotID(fmt.Sprintf("db-%d", i))
		_, err := s.capture(t, id)
		check(t, err)
		got, err := os.ReadFile(contentOf(t, s, id))
		check(t, err)
		if !bytes.Equal(got, s.fold(t)) {
			t.Fatalf("step %d: the capture is not the live state", i)
		}
	}
}

// awaitReliableTimes waits until the files' times are old enough to be told from a later write's.
func (s *subject) awaitReliableTimes(t *testing.T) {
	t.Helper()
	check(t, s.driver.withLive(t.Context(), false, func(l *live) error {
		for id := l.identity.DB; !id.Distinct; id = newFileID(l.stat) {
			time.Sleep(time.Millisecond)
		}
		return nil
	}))
}

// toRead counts the chunks that a capture would read now.
func (s *subject) toRead(t *testing.T) (n int) {
	t.Helper()
	b := s.cfg.Store.Begin()
	defer b.Discard()
	check(t, s.driver.withLive(t.Context(), false, func(l *live) error {
		now := &captured{}
		now.laid, now.whole = l.laid()
		known := s.driver.known(l, now, b)
		for i := range int((l.length() + chunkSize - 1) / chunkSize) {
			if _, ok := known(i); !ok {
				n++
			}
		}
		return nil
	}))
	return n
}

// Whatever lies in a log or a journal, it is read to its end or refused, and no page is
// promised that is not there.
func FuzzFold(f *testing.F) {
	for _, data := range fuzzSeeds(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { foldAny(t, data) })
}

// The same with bytes of the seeds changed at random: the fuzzing engine is slow in a
// binary that has SQLite in it.
func TestFoldDamaged(t *testing.T) {
	random := testkit.Rand(t)
	for _, seed := range fuzzSeeds(t) {
		for range 3000 {
			data := bytes.Repeat(seed, 1+random.IntN(3))
			data = data[:len(data)-random.IntN(len(data))]
			for range random.IntN(4) {
				data[random.IntN(min(len(data), 48<<random.IntN(5)))] = byte(random.Uint32() >> random.IntN(8))
			}
			foldAny(t, data)
		}
	}
}

func foldAny(t *testing.T, data []byte) {
	t.Helper()
	r, size := bytes.NewReader(data), int64(len(data))
	var layers []*layer
	if l, err := readJournal(r, size, 4096); err == nil && l != nil {
		layers = append(layers, l)
	}
	if w, err := readWAL(r, size); err == nil && w != nil {
		layers = append(layers, &w.layer)
	}
	for _, l := range layers {
		for page, at := range l.pages {
			if at < 0 || at+l.pageSize > size || page == 0 {
				t.Fatalf("page %d at %d of %d bytes: %x", page, at, size, data)
			}
		}
		m := image{file: bytes.NewReader(nil), layers: []*layer{l}}
		buf := make([]byte, chunkSize)
		for off := int64(0); off < min(m.length(), 2*chunkSize); off += chunkSize {
			if n, err := m.readAt(buf, off); err != nil || int64(n) != min(chunkSize, m.length()-off) {
				t.Fatalf("%d bytes at %d of %d: %v", n, off, m.length(), err)
			}
		}
	}
}

// fuzzSeeds are a journal and a log of 512-byte pages, made with the reader's own sums.
func fuzzSeeds(f testing.TB) [][]byte {
	f.Helper()
	journal, err := hex.DecodeString("d9d505f920a163d7" + "00000001" + "00000000" + "00000002" + "00000200" + "00000200")
	check(f, err)
	journal = append(journal, make([]byte, 512-len(journal))...)
	journal = append(journal, 0, 0, 0, 1)
	journal = append(journal, make([]byte, 512+4)...)
	if l, err := readJournal(bytes.NewReader(journal), int64(len(journal)), 512); err != nil || l == nil || len(l.pages) != 1 {
		f.Fatalf("the seed is no journal: %v, %v", l, err)
	}
	log, err := hex.DecodeString("377f0682" + "002de218" + "00000200" + "00000000" + "0102030405060708")
	check(f, err)
	running := checksum{order: binary.LittleEndian}
	seal := func() {
		log = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(log, running.s0), running.s1)
	}
	running.add(log)
	seal()
	frame := []byte{0, 0, 0, 3, 0, 0, 0, 3} // page 3, and the database has 3
	page := bytes.Repeat([]byte("mulligan"), 64)
	running.add(frame)
	running.add(page)
	log = append(append(log, frame...), 1, 2, 3, 4, 5, 6, 7, 8)
	seal()
	log = append(log, page...)
	if w, err := readWAL(bytes.NewReader(log), int64(len(log))); err != nil || w == nil || w.pages[3] != 56 || w.size != 3*512 {
		f.Fatalf("the seed is no log: %v, %v", w, err)
	}
	return [][]byte{journal, log}
}
