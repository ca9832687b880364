package remote

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"mulligan/snap"
	"mulligan/snap/files"
	"mulligan/snap/sqlite"
	"mulligan/testkit"
)

// machine is a host with a workspace, a SQLite database in it, and the drivers of both.
type machine struct {
	*host
	dir     string
	drivers map[snap.Layer]snap.Driver
}

func newMachine(t *testing.T, h *host) *machine {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	m := &machine{host: h, dir: top + "/ws"}
	for _, d := range []string{"/ws", "/files", "/sqlite"} {
		must(t, os.Mkdir(top+d, 0o755))
	}
	f, err := files.New(files.Config{App: "app", Dir: m.dir, StateDir: top + "/files", Store: h.store, Owner: -1, Skip: []string{"app.db"}})
	must(t, err)
	db, err := sqlite.New(sqlite.Config{App: "app", Name: "main", Dir: m.dir, Path: "app.db", StateDir: top + "/sqlite", Store: h.store})
	must(t, err)
	m.drivers = map[snap.Layer]snap.Driver{snap.Files: f, snap.DB("main"): db}
	return m
}

// work changes files of all kinds, and the database.
func (m *machine) work(n int) {
	m.t.Helper()
	dir := fmt.Sprintf("%s/folder-%d/deep", m.dir, n)
	must(m.t, os.MkdirAll(dir, 0o755))
	must(m.t, os.Mkdir(dir+"/empty", 0o700))
	must(m.t, os.WriteFile(dir+"/large", testkit.Bytes(m.t, 3<<20, n), 0o640))
	must(m.t, os.WriteFile(dir+"/none", nil, 0o600))
	must(m.t, os.WriteFile(m.dir+"/notes.txt", fmt.Appendf(nil, "state %d", n), 0o644))
	must(m.t, os.Symlink("../../notes.txt", dir+"/link"))
	if n > 1 {
		must(m.t, os.RemoveAll(fmt.Sprintf("%s/folder-%d/deep/empty", m.dir, n-1)))
		must(m.t, os.Chmod(fmt.Sprintf("%s/folder-%d/deep/large", m.dir, n-1), 0o755))
	}
	db, err := sql.Open("sqlite", m.dir+"/app.db")
	must(m.t, err)
	for _, q := range []string{"CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, b BLOB)", "UPDATE t SET b = 'older' WHERE id % 2"} {
		_, err = db.Exec(q)
		must(m.t, err)
	}
	for range 20 {
		_, err = db.Exec("INSERT INTO t (b) VALUES (?)", testkit.Bytes(m.t, 2000, "row"))
		must(m.t, err)
	}
	must(m.t, db.Close())
}

// print describes all that is in the workspace and the database.
func (m *machine) print() string {
	m.t.Helper()
	var b strings.Builder
	must(m.t, filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(path, m.dir)
		if err != nil || strings.HasPrefix(rel, "/app.db") || rel == "" {
			return err
		}
		info, err := d.Info()
		must(m.t, err)
		fmt.Fprint(&b, rel, " ", info.Mode())
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			must(m.t, err)
			fmt.Fprintf(&b, " %x %v", sha256.Sum256(data), info.ModTime().UnixNano())
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			must(m.t, err)
			b.WriteString(" -> " + to)
		}
		b.WriteString("\n")
		return nil
	}))
	db, err := sql.Open("sqlite", m.dir+"/app.db")
	must(m.t, err)
	defer db.Close()
	rows, err := db.Query("SELECT id, b FROM t ORDER BY id")
	must(m.t, err)
	defer rows.Close()
	for rows.Next() {
		var id int
		var p []byte
		must(m.t, rows.Scan(&id, &p))
		fmt.Fprintf(&b, "%d %x\n", id, sha256.Sum256(p))
	}
	must(m.t, rows.Err())
	return b.String()
}

// pushState pushes a checkpoint of all layers. mark is the position of its files in the journal; "" is now.
func (m *machine) pushState(id string, mark snap.Mark) {
	m.t.Helper()
	var parts []Part
	for layer, d := range m.drivers {
		req := snap.CaptureRequest{ID: snap.SnapshotID("tt-" + id), Quiesced: true}
		if layer == snap.Files {
			req.At = mark
		}
		_, err := d.Capture(m.t.Context(), req)
		must(m.t, err)
		carrier, ok := snap.TransporterOf(d)
		if !ok {
			m.t.Fatalf("snapshots of %s cannot leave the host", layer)
		}
		p, release, err := carrier.Export(m.t.Context(), req.ID)
		must(m.t, err)
		defer release()
		parts = append(parts, Part{layer, p})
		must(m.t, d.Delete(m.t.Context(), req.ID)) // the push holds what it sends
	}
	cp := Checkpoint{ID: id, About: []byte("{}"), App: []byte("{}")}
	cp.SetParts(parts)
	_, err := m.place.Push(m.t.Context(), m.store, cp)
	must(m.t, err)
}

// clone takes the machine to a checkpoint of the remote.
func (m *machine) clone(hist *History, id string) {
	m.t.Helper()
	ctx := m.t.Context()
	cp, err := hist.Find(id)
	must(m.t, err)
	b, err := hist.Fetch(ctx, &cp.Checkpoint, m.store, m.t.TempDir())
	must(m.t, err)
	defer b.Discard()
	parts, err := cp.Snapshots()
	must(m.t, err)
	for _, p := range parts {
		d := m.drivers[p.Layer]
		carrier, _ := snap.TransporterOf(d)
		as, base := snap.SnapshotID("tt-clone-"+id), snap.SnapshotID("tt-base-"+id)
		_, err := carrier.Import(ctx, p.Portable, as)
		must(m.t, err)
		must(m.t, d.Verify(ctx, as, snap.Full))
		if _, err = d.Capture(ctx, snap.CaptureRequest{ID: base, Quiesced: true}); err != nil { // there is no database yet
			salvager, _ := snap.SalvagerOf(d)
			_, err = salvager.Salvage(ctx, snap.CaptureRequest{ID: base, Quiesced: true})
		}
		must(m.t, err)
		sw, err := d.Prepare(ctx, snap.RestoreRequest{ID: snap.RestoreID("op-" + id), Target: as, Base: base})
		must(m.t, err)
		must(m.t, sw.Commit(ctx))
		proof, err := sw.Check(ctx)
		must(m.t, err)
		if !proof.Match {
			m.t.Errorf("%s of %s: %+v", p.Layer, id, proof)
		}
		must(m.t, sw.Finish(ctx))
	}
}

// With nothing but the bucket and the identity, another host has the files and databases of each checkpoint as they were.
func testAnotherHost(t *testing.T, s servers) {
	server := s.start(t)
	first := newMachine(t, newHost(t, server.Endpoint))
	states := map[string]string{}
	var ids []string
	save := func(id string, mark snap.Mark) {
		ids = append(ids, id)
		first.pushState(id, mark)
	}
	first.work(1)
	states["cp-1"] = first.print()
	save("cp-1", "")

	follow, stop := context.WithCancel(t.Context())
	done := make(chan error)
	journal := first.drivers[snap.Files].(snap.Journal)
	go func() { done <- journal.Follow(follow, func(snap.Batch) {}) }()
	testkit.Eventually(t, "the files are followed", func() bool {
		_, err := journal.Flush(t.Context())
		return err == nil
	})
	first.work(2)
	mark, err := journal.Flush(t.Context())
	must(t, err)
	states["cp-2"] = first.print()
	must(t, os.WriteFile(first.dir+"/later", []byte("written after the turn began"), 0o644))
	save("cp-2", mark) // a marker: its files are a position in the journal
	must(t, os.Remove(first.dir+"/later"))
	stop()
	<-done
	first.work(3)
	states["cp-3"] = first.print()
	save("cp-3", "")

	hist, err := first.read()
	must(t, err)
	for _, order := range [][]string{{"cp-3", "cp-1"}, {"cp-2", "cp-3"}} {
		h := *first.host
		h.store = openStore(t)
		second := newMachine(t, &h)
		for _, id := range order {
			second.clone(hist, id)
			if got := second.print(); got != states[id] {
				t.Errorf("%s of %v is\n%s\nnot\n%s", id, ids, got, states[id])
			}
		}
	}
}
