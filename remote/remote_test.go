package remote

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"

	"mulligan/errs"
	"mulligan/remote/identity"
	"mulligan/remote/s3test"
	"mulligan/testkit"
)

// What is pushed comes back on another host; a push costs what changed; and nothing in the bucket can be read.
func testPushAndFetch(t *testing.T, s servers) {
	const earlier, later = "cp-the-earlier", "cp-the-later" // too long to be in the bucket's megabytes of random bytes by chance
	server := s.start(t)
	h := newHost(t, server.Endpoint)
	h.write(180, 100<<10) // more than one pack
	if res := h.push(earlier); res.Packs < 2 || res.Objects != 197 {
		t.Errorf("the first push: %+v", res)
	}
	h.write(10, 1000)
	before := h.bucket.Usage()
	res := h.push(later)
	now := h.bucket.Usage()
	if n := now.Requests - before.Requests; n != 2 || res.Packs != 1 || now.Sent-before.Sent > 64<<10 {
		t.Errorf("the push of ten small files took %d requests: %+v", n, res)
	}
	if res := h.push(later); !res.Already || h.bucket.Usage() != now {
		t.Errorf("pushed again: %+v", res)
	}
	h.whole(earlier, later)

	var known [][]byte
	for i := range 19 {
		p := h.content[fmt.Sprintf("file-%04d", i*10)]
		blob := h.hash(p)
		known = append(known, p[:32], blob[:], []byte(hex.EncodeToString(blob[:])))
	}
	for _, word := range []string{earlier, later, "file-0001", "folder", "the secret app", "meta of", "first-host", "checkpoint"} {
		known = append(known, []byte(word))
	}
	files := server.Objects(t)
	if len(files) < 5 {
		t.Fatalf("the bucket has %d objects", len(files))
	}
	for _, path := range files {
		data := server.Read(t, path)
		for _, k := range known {
			if bytes.Contains(data, k) || strings.Contains(path, string(k)) {
				t.Fatalf("%s has %q", path, k)
			}
		}
	}
	_, err := Reader{h.bucket, h.cfg.Name, mustIdentities(t)}.Read(t.Context())
	if errs.KindOf(err) != errs.Denied {
		t.Errorf("another identity reads the log: %v", err)
	}
}

// Whatever is done to one object of the bucket, a checkpoint comes back as it was, or not at all and with a sentence.
func testDamagedBucket(t *testing.T, s servers) {
	server := s.start(t)
	h := newHost(t, server.Endpoint)
	for _, id := range []string{"cp-1", "cp-2", "cp-3"} {
		h.write(5, 500)
		h.push(id)
	}
	files := server.Objects(t)
	if len(files) != 6 {
		t.Fatalf("the bucket has %d objects", len(files))
	}
	random := testkit.Rand(t)
	var contents [][]byte
	for _, path := range files {
		contents = append(contents, server.Read(t, path))
	}
	for i, path := range files {
		was := contents[i]
		flipped := bytes.Clone(was)
		flipped[random.IntN(len(was))] ^= 1 << random.IntN(8)
		cases := map[string][]byte{"flipped": flipped, "cut": was[:random.IntN(len(was))], "empty": {}, "removed": nil}
		for j, other := range contents {
			if j != i {
				cases["replaced by "+filepath.Base(files[j])] = other
			}
		}
		for what, data := range cases {
			if data == nil {
				server.Remove(t, path)
			} else {
				server.Write(t, path, data)
			}
			h.checkDamaged(filepath.Base(path)+" "+what, strings.Contains(path, "/log/"))
			server.Write(t, path, was)
		}
	}
	h.whole("cp-1", "cp-2", "cp-3")
}

// checkDamaged checks what can be fetched of a place of which one object is damaged.
func (h *host) checkDamaged(what string, log bool) {
	h.t.Helper()
	hist, err := h.read()
	must(h.t, err)
	told := len(hist.Problems) > 0 || len(hist.Warnings) > 0
	failed := 0
	for _, id := range []string{"cp-1", "cp-2", "cp-3"} {
		if err := h.fetch(hist, id); err != nil {
			failed++
			if k := errs.KindOf(err); k != errs.Corrupt && k != errs.NotFound || len(errs.Words(err)) < 20 {
				h.t.Errorf("%s: %s: %v", what, id, err)
			}
		}
	}
	if failed == 0 || log && !told {
		h.t.Errorf("%s: %d of 3 cannot be fetched; problems %q, warnings %q", what, failed, hist.Problems, hist.Warnings)
	}
}

// The host that another one took the place over from stops with a sentence, and may take it back.
func testTwoHosts(t *testing.T, s servers) {
	a := newHost(t, s.start(t).Endpoint)
	a.write(5, 500)
	a.push("cp-1")
	b := a.other()
	b.write(1, 500)
	_, err := b.place.Push(t.Context(), b.store, b.capture("cp-2"))
	if errs.KindOf(err) != errs.Conflict || !strings.Contains(errs.Words(err), "--take-over") {
		t.Fatalf("a second host pushes: %v", err)
	}
	must(t, b.place.TakeOver(t.Context()))
	b.push("cp-2")
	a.write(1, 500)
	for range 2 {
		if _, err = a.place.Push(t.Context(), a.store, a.capture("cp-3")); errs.KindOf(err) != errs.Conflict {
			t.Fatalf("the first host pushes on: %v", err)
		}
		a.restart(nil)
	}
	st, err := a.place.Status()
	if err != nil || st.Lost == nil || st.Lost.Writer != b.cfg.Writer {
		t.Errorf("the first host's status: %+v, %v", st, err)
	}
	b.write(1, 500)
	b.push("cp-4")
	a.whole("cp-1", "cp-2", "cp-4")
	cut := errors.New("cut short")
	a.restart(func(at string) (err error) {
		if at == "push: entry" {
			err = cut
		}
		return err
	})
	if err = a.place.TakeOver(t.Context()); !errors.Is(err, cut) {
		t.Fatal(err)
	}
	a.restart(nil)
	if _, err = a.place.Push(t.Context(), a.store, a.capture("cp-3")); errs.KindOf(err) != errs.Conflict {
		t.Fatalf("the first host pushes after a take-over that failed: %v", err)
	}
	must(t, a.place.TakeOver(t.Context()))
	a.push("cp-3")
	a.whole("cp-1", "cp-2", "cp-4", "cp-3")
}

// A ledger that is lost, cut, flipped, older or of another place costs requests, and nothing else.
func testLedgerNotBelieved(t *testing.T, s servers) {
	h := newHost(t, s.start(t).Endpoint)
	random := testkit.Rand(t)
	h.write(5, 500)
	h.push("cp-1")
	older, err := os.ReadFile(h.cfg.Ledger)
	must(t, err)
	ids := []string{"cp-1"}
	for what, spoil := range map[string]func([]byte) []byte{
		"lost":    func([]byte) []byte { return nil },
		"cut":     func(p []byte) []byte { return p[:random.IntN(len(p))] },
		"flipped": func(p []byte) []byte { p[random.IntN(len(p))] ^= 4; return p },
		"older":   func([]byte) []byte { return older },
		"longer":  func(p []byte) []byte { return append(p, "more"...) },
	} {
		data, err := os.ReadFile(h.cfg.Ledger)
		must(t, err)
		must(t, os.WriteFile(h.cfg.Ledger, spoil(data), 0o600))
		h.restart(nil)
		h.write(2, 500)
		h.push("cp-" + what)
		ids = append(ids, "cp-"+what)
		h.whole(ids...)
	}
}

// A push that ends at any of its steps is finished by the next one, and sends nothing twice that was noted.
func testPushCutShort(t *testing.T, s servers) {
	h := newHost(t, s.start(t).Endpoint)
	cut := errors.New("cut short")
	h.write(5, 500)
	h.push("cp-0")
	ids := []string{"cp-0"}
	for _, step := range []string{"push: pack", "push: sent", "push: intent", "push: entry", "push: wrote"} {
		h.write(2, 500)
		id := "cp-" + step[6:]
		cp := h.capture(id)
		h.restart(func(at string) error {
			if at == step {
				return cut
			}
			return nil
		})
		if _, err := h.place.Push(t.Context(), h.store, cp); !errors.Is(err, cut) {
			t.Fatalf("%s: %v", step, err)
		}
		h.restart(nil)
		res, err := h.place.Push(t.Context(), h.store, cp)
		must(t, err)
		if noted := step != "push: pack" && step != "push: sent"; noted && res.Objects != 0 {
			t.Errorf("%s: %d objects are sent again", step, res.Objects)
		}
		if res.Already != (step == "push: wrote") {
			t.Errorf("%s: %+v", step, res)
		}
		ids = append(ids, id)
		h.whole(ids...)
	}
}

// testNewRecipient: who is made a recipient can read all that is sent from then on, whatever a push before that left. What was sent before is in doubt
// until it is sent again.
func testNewRecipient(t *testing.T, s servers) {
	server := s.start(t)
	cut := errors.New("cut short")
	for _, beside := range []bool{false, true} { // the first one, or in its place
		for _, left := range []struct {
			step    string   // at which a push of cp-2 was cut short; "": there was none
			earlier []string // what was sent before it
		}{{"", []string{"cp-1"}}, {"push: intent", []string{"cp-1"}}, {"push: wrote", []string{"cp-1"}}, {"push: wrote", nil}} {
			step, earlier := left.step, left.earlier
			h := newHost(t, server.Endpoint)
			h.write(20, 500)
			h.capture("cp-1")
			for _, id := range earlier {
				h.push(id)
			}
			h.write(1, 500)
			cp := h.capture("cp-2")
			if step != "" {
				h.restart(func(at string) (err error) {
					if at == step {
						err = cut
					}
					return err
				})
				if _, err := h.place.Push(t.Context(), h.store, cp); !errors.Is(err, cut) {
					t.Fatalf("%s: %v", step, err)
				}
			}
			second, err := age.GenerateX25519Identity()
			must(t, err)
			to := []age.Recipient{second.Recipient()}
			if beside {
				to = append(to, h.id.Recipient())
			}
			h.id, h.cfg.Recipients = second, to
			h.restart(nil)
			doubtful := func(when string, want ...string) {
				t.Helper()
				var got []string
				status, err := h.place.Status()
				must(t, err)
				for _, c := range status.Doubtful {
					got = append(got, c.ID)
				}
				slices.Sort(got) // cp-1 is the later one where it was not sent earlier
				if !slices.Equal(got, want) {
					t.Errorf("%q, %s: in doubt are %v, not %v", step, when, got, want)
				}
			}
			send := func(want bool, cps ...Checkpoint) {
				t.Helper()
				for _, cp := range cps {
					if res, err := h.place.Push(t.Context(), h.store, cp); err != nil || res.Already == want {
						t.Fatalf("%q: %s is sent again: %t, %v", step, cp.ID, !res.Already, err)
					}
				}
			}
			readable := func(ids ...string) {
				t.Helper()
				hist, err := h.read()
				must(t, err)
				if len(hist.Checkpoints) != len(ids) {
					t.Errorf("%q: the second identity reads %d checkpoints, not %v", step, len(hist.Checkpoints), ids)
				}
				for _, id := range ids {
					must(t, h.fetch(hist, id))
				}
			}
			doubtful("before anything is sent", earlier...)
			send(true, cp)
			readable("cp-2")
			doubtful("after a push", earlier...)
			if res, err := h.place.Check(t.Context(), true); err != nil || len(res.Problems) != len(earlier) ||
				len(earlier) > 0 && !strings.Contains(res.Problems[0], earlier[0]) {
				t.Errorf("%q: checked: %+v %v", step, res, err)
			}
			send(true, h.recorded("cp-1"))
			readable("cp-1", "cp-2")
			h.cfg.Recipients = to[:1] // to let one go needs nothing
			h.restart(nil)
			send(false, cp, h.recorded("cp-1"))
			doubtful("at the end")
			if res := h.prune("cp-1", "cp-2"); res.Packs == 0 || len(res.Gone) > 0 {
				t.Errorf("%q: what the first one could read alone is pruned: %+v", step, res)
			}
			readable("cp-1", "cp-2")
			h.cfg.Recipients = append(to[:1:1], newHostAt(t, h.bucket).cfg.Recipients...)
			h.restart(nil)
			doubtful("after one more is added", "cp-1", "cp-2")
		}
	}
}

// testPruneNewRecipient: a prune leaves of what two checkpoints have in common only what was sent last. If that was for another recipient, the older one
// of them, which was not sent again, is read with both identities in one file, and who has one of the two is told so.
func testPruneNewRecipient(t *testing.T, s servers) {
	h := newHost(t, s.start(t).Endpoint)
	first := h.id
	h.write(20, 500)
	h.push("cp-0")
	h.write(1, 500)
	h.push("cp-1")
	h.lose("cp-0")
	h.lose("cp-1")
	second, err := age.GenerateX25519Identity()
	must(t, err)
	h.id, h.cfg.Recipients = second, []age.Recipient{second.Recipient()}
	h.restart(nil)
	h.push("cp-2") // the contents of cp-1
	fetch := func(file string) error {
		t.Helper()
		ids, err := identity.Parse(file)
		must(t, err)
		hist, err := Reader{h.bucket, h.cfg.Name, ids}.Read(t.Context())
		must(t, err)
		return h.fetch(hist, "cp-1")
	}
	must(t, fetch(first.String()))
	if res := h.prune("cp-1", "cp-2"); res.Packs != 1 || res.Stay != 2 {
		t.Fatalf("%+v", res)
	}
	for which, id := range []*age.X25519Identity{first, second} {
		if err := fetch(id.String()); errs.KindOf(err) != errs.Corrupt || !strings.Contains(errs.Words(err), "into one file") {
			t.Errorf("identity %d alone: %s", which, errs.Words(err))
		}
	}
	must(t, fetch(first.String()+"\n"+second.String()+"\n"))
}

// Somebody who can write to the bucket and knows the recipient writes entries of the log: none of them is read, all of them are told, and the host
// does not take it for another one of its kind.
func testForgedEntry(t *testing.T, s servers) {
	server := s.start(t)
	h := newHost(t, server.Endpoint)
	h.write(5, 500)
	h.push("cp-1")
	forger := h.other()
	forger.cfg.Key = NewKey()
	forger.place = NewPlace(forger.cfg)
	l, err := openLedger(forger.cfg.Ledger, forger.cfg.Name)
	must(t, err)
	must(t, forger.place.skipAhead(t.Context(), l)) // it need not be told the number
	must(t, l.close())
	forger.write(1, 500)
	forger.push("cp-forged")
	hist, err := h.read()
	must(t, err)
	if len(hist.Problems) != 1 || !strings.Contains(hist.Problems[0], "does not have the log's key") || len(hist.Checkpoints) != 1 {
		t.Errorf("%q %+v", hist.Problems, hist.Checkpoints)
	}
	if _, err := hist.Newest(); errs.KindOf(err) != errs.Corrupt {
		t.Errorf("the newest: %v", err)
	}
	must(t, h.fetch(hist, "cp-1"))
	h.write(1, 500)
	if _, err := h.place.Push(t.Context(), h.store, h.capture("cp-2")); errs.KindOf(err) != errs.Conflict || !strings.Contains(errs.Words(err), "does not have the log's key") {
		t.Errorf("the host pushes: %v", err)
	}
	if st, err := h.place.Status(); err != nil || st.Lost != nil {
		t.Errorf("the host takes it for another host: %+v %v", st, err)
	}
	if name := KeyName(h.cfg.Key); hist.Key == nil || KeyName(hist.Key) != name || name == KeyName(forger.cfg.Key) || len(name) != 16 {
		t.Errorf("the key's name is %q", name)
	}
}

// TestFindBesideDamage: of a checkpoint whose entry cannot be read, nobody is told that it is not on the remote. What can be read is found as before.
func TestFindBesideDamage(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	h := newHost(t, server.Endpoint)
	h.write(3, 500)
	h.push("cp-1")
	h.push("cp-2")
	hist, err := h.read()
	must(t, err)
	if _, err := hist.Find("cp-3"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("one that was never there, beside a whole log: %v", err)
	}
	files := server.Objects(t)
	path := files[slices.IndexFunc(files, func(path string) bool { return strings.Contains(path, "/log/"+fmt.Sprintf("%016d", 1)) })]
	bad := server.Read(t, path)
	bad[len(bad)/2] ^= 1
	server.Write(t, path, bad)
	hist, err = h.read()
	must(t, err)
	if _, err := hist.Find("cp-1"); errs.KindOf(err) != errs.Corrupt || !strings.Contains(err.Error(), "Entry 1 of the log cannot be read: ") {
		t.Errorf("the one whose entry is damaged: %v", err)
	}
	if _, err := hist.Find("cp-2"); err != nil {
		t.Errorf("the other one: %v", err)
	}
}
