package physical

import (
	"fmt"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/physical/pgserver"
)

// bucket has objects by their hashes, as a content store does.
type bucket map[snap.Hash]stored

type stored struct {
	data []byte
	refs []snap.Hash
	node bool
}

func (b bucket) Object(h snap.Hash) ([]byte, []snap.Hash, bool, error) {
	o, ok := b[h]
	if !ok {
		return nil, nil, false, errs.New(errs.Corrupt, "", "there is no object %s", h)
	}
	return o.data, o.refs, o.node, nil
}

// take puts all objects from h on that b lacks into b, and returns how many bytes these are.
func (b bucket) take(t *testing.T, from snap.Contents, h snap.Hash) (n int) {
	t.Helper()
	if _, ok := b[h]; ok {
		return 0
	}
	data, refs, node, err := from.Object(h)
	check(t, err)
	for _, r := range refs {
		n += b.take(t, from, r)
	}
	b[h] = stored{data, refs, node}
	return n + len(data) + 32*len(refs)
}

// send exports a snapshot into b.
func (s *subject) send(t *testing.T, b bucket, id snap.SnapshotID) (p snap.Portable, n int) {
	t.Helper()
	p, release, err := s.driver.Export(t.Context(), id)
	check(t, err)
	defer release()
	n = b.take(t, p.Contents, p.Object)
	p.Contents = nil
	return p, n
}

// says is what the databases of a cluster say, by a client of the test's own.
func (s *subject) says(t *testing.T) string {
	t.Helper()
	return s.Psql(t, "app", "SELECT count(*), coalesce(sum(hashtext(id::text || seed || encode(v, 'hex'))), 0) FROM kv") +
		s.Psql(t, "postgres", "SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database; SELECT string_agg(rolname, ' ' ORDER BY rolname) FROM pg_roles")
}

// takeFrom has the driver import from b.
func (s *subject) takeFrom(t *testing.T, b bucket) {
	t.Helper()
	s.cfg.Objects = b
	s.reopen(t)
}

// Receive puts what was exported to where Import reads.
func (s *subject) Receive(t *testing.T, p snap.Portable) {
	t.Helper()
	s.cfg.Objects.(bucket).take(t, p.Contents, p.Object)
}

func (s *subject) capture(t *testing.T, id snap.SnapshotID) {
	t.Helper()
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
	check(t, err)
}

// testCarried sends markers of a cluster to another host, whose own cluster is another one: each is there as it was here, and back again. Only what
// was written in between is sent of the second. From there it goes on to a third host.
func testCarried(t *testing.T) {
	t.Parallel()
	first := newSubject(t, options{})
	first.mutate(t, 1)
	first.Psql(t, "postgres", "CREATE ROLE somebody")
	first.capture(t, "one")
	atOne := first.says(t)
	first.mutate(t, 2)
	first.Psql(t, "postgres", "CREATE DATABASE more")
	first.capture(t, "two")
	atTwo := first.says(t)
	first.mutate(t, 3)
	first.capture(t, "now")
	first.restore(t, "one", "now") // on a timeline of its own
	first.mutate(t, 4)
	first.capture(t, "three")
	atThree := first.says(t)

	b := bucket{}
	one, all := first.send(t, b, "one")
	two, more := first.send(t, b, "two")
	if _, again := first.send(t, b, "two"); again != 0 || more > all/2 {
		t.Errorf("%d bytes of the first marker, %d of the second, %d of the same again", all, more, again)
	}
	three, _ := first.send(t, b, "three")

	second := newSubject(t, options{init: []string{"--data-checksums"}, settings: map[string]string{"work_mem": "5MB"}})
	second.takeFrom(t, b)
	own := second.Psql(t, "postgres", "SELECT system_identifier FROM pg_control_system()")
	if own == first.Psql(t, "postgres", "SELECT system_identifier FROM pg_control_system()") {
		t.Fatal("the two clusters are the same")
	}
	second.mutate(t, 9)
	second.capture(t, "before")
	before := second.says(t)
	for i, p := range []struct {
		snap.Portable
		want string
	}{{one, atOne}, {two, atTwo}, {three, atThree}} {
		id := snap.SnapshotID(fmt.Sprint("from-remote-", i))
		_, err := second.driver.Import(t.Context(), p.Portable, id)
		check(t, err)
		check(t, second.driver.Verify(t.Context(), id, snap.Full))
		base := snap.SnapshotID(fmt.Sprint("base-", i))
		second.capture(t, base)
		second.restore(t, id, base)
		if got := second.says(t); got != p.want {
			t.Fatalf("snapshot %d says\n%s\nand said\n%s", i, got, p.want)
		}
		if got := second.Psql(t, "app", "SHOW work_mem"); strings.TrimSpace(got) != "5MB" {
			t.Errorf("the configuration is that of the other host: work_mem = %s", got)
		}
		check(t, second.driver.Maintain(t.Context()))
		second.mutate(t, int64(20+i)) // and work goes on
		second.capture(t, snap.SnapshotID(fmt.Sprint("after-", i)))
	}
	after := second.says(t)
	second.capture(t, "last")

	// The cluster that was here before comes back, and the one that was sent after it.
	second.restore(t, "before", "last")
	if got := second.says(t); got != before {
		t.Errorf("the cluster that was here before says\n%s\nand said\n%s", got, before)
	}
	check(t, second.driver.Maintain(t.Context()))
	second.capture(t, "home-again")
	second.restore(t, "after-2", "home-again")
	if got := second.says(t); got != after {
		t.Errorf("the cluster from the remote says\n%s\nand said\n%s", got, after)
	}
	check(t, second.driver.Sweep(t.Context(), snap.Gone{}))

	// What came from a remote goes to another one.
	there := bucket{}
	p, _ := second.send(t, there, "from-remote-1")
	q, _ := second.send(t, there, "after-2")
	third := newSubject(t, options{})
	third.takeFrom(t, there)
	for i, want := range []string{atTwo, after} {
		id := snap.SnapshotID(fmt.Sprint("third-", i))
		_, err := third.driver.Import(t.Context(), []snap.Portable{p, q}[i], id)
		check(t, err)
		base := snap.SnapshotID(fmt.Sprint("base-", i))
		third.capture(t, base)
		third.restore(t, id, base)
		if got := third.says(t); got != want {
			t.Errorf("on the third host the cluster says\n%s\nand said\n%s", got, want)
		}
	}
}

// testCarriedDamaged has objects missing, and sends to a server of another version or kind: an error, and nothing is left.
func testCarriedDamaged(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.mutate(t, 1)
	s.capture(t, "one")
	b := bucket{}
	p, _ := s.send(t, b, "one")
	s.takeFrom(t, b)
	s.mutate(t, 2)
	want := s.says(t)
	for h, o := range b {
		delete(b, h)
		if _, err := s.driver.Import(t.Context(), p, "damaged"); errs.KindOf(err) != errs.Corrupt {
			t.Fatalf("an object is missing: %v", err)
		}
		b[h] = o
		if len(o.refs) == 0 && h[0] > 20 { // some of the many pieces
			break
		}
	}
	p.Driver = "postgres"
	if _, err := s.driver.Import(t.Context(), p, "foreign"); errs.KindOf(err) != errs.Unsupported {
		t.Errorf("a snapshot of another kind: %v", err)
	}
	check(t, s.driver.Sweep(t.Context(), snap.Gone{}))
	if got := s.says(t); got != want {
		t.Errorf("the cluster says %s", got)
	}
	if running, err := pgserver.InUse(s.DataDir); err != nil || !running {
		t.Errorf("the server does not run: %v", err)
	}
}
