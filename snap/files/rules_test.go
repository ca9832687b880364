package files

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"mulligan/snap"
	"mulligan/snap/cas"
)

// excludedThen makes a workspace with what its rules exclude, and what they do not.
func excludedThen(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	s.cfg.Exclude, s.cfg.Skip = []string{".env", "uploads/"}, []string{"data/shop.db"}
	s.open(t)
	for _, p := range []string{"code", ".env", "uploads/p", "uploads/tmp/x", "data/shop.db", "mixed/uploads/q", "mixed/page"} {
		write(t, s.dir+"/"+p, "one")
	}
	must(t, os.Link(s.dir+"/.env", s.dir+"/uploads/env"))
	return s
}

// makeSince changes what the snapshot has, and makes what goes with a restore, beside what must stay.
func makeSince(t *testing.T, s *site) {
	t.Helper()
	for _, p := range []string{"code", "made", "new/uploads/r", "new/page", "gone/page"} {
		write(t, s.dir+"/"+p, "two")
	}
	must(t, os.Link(s.dir+"/.env", s.dir+"/made-link"))
	must(t, os.Link(s.dir+"/code", s.dir+"/uploads/code"))
}

// TestExcludedThen: what a snapshot could not have, because it was excluded then or another driver's, stays at a restore, whatever it shares
// with what goes. The proof matches, a note says so, and neither the diff nor the switch names it as made since.
func TestExcludedThen(t *testing.T) {
	for what, at := range map[string]func(*testing.T, *followed) snap.SnapshotID{
		"a snapshot": func(t *testing.T, f *followed) snap.SnapshotID { return f.capture(t).ID },
		"a marker": func(t *testing.T, f *followed) snap.SnapshotID {
			f.follow(t)
			id := f.at(t, f.flush(t))
			f.stop()
			return id
		},
		"an imported snapshot": func(t *testing.T, f *followed) snap.SnapshotID {
			p, release, err := f.Export(t.Context(), f.capture(t).ID)
			must(t, err)
			defer release()
			s, err := f.Import(t.Context(), p, "fs-imported")
			must(t, err)
			return s.ID
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := &followed{site: excludedThen(t)}
			first := at(t, f)
			f.cfg.Exclude, f.cfg.Skip = []string{"uploads/tmp/"}, nil
			f.open(t)
			must(t, os.Chtimes(f.dir+"/data", stamp, stamp))
			makeSince(t, f.site)
			before := listing(t, f.dir)
			base := f.capture(t)
			sw, err := f.Prepare(t.Context(), snap.RestoreRequest{ID: "op-then", Target: first, Base: base.ID})
			must(t, err)
			seen, total := sw.Changes(100)
			changes, err := f.Diff(t.Context(), first, "", nil)
			must(t, err)
			for _, list := range [][]snap.Change{seen, changes} { // of uploads/code, that it will not be the same file as code
				var paths []string
				for _, c := range list {
					paths = append(paths, c.Path)
				}
				if want := []string{"code", "gone", "gone/page", "made", "made-link", "new/page", "uploads/code"}; total != len(want) || !slices.Equal(paths, want) {
					t.Errorf("%d changes, %q; want %q", total, paths, want)
				}
			}
			must(t, f.Precheck(t.Context(), first, nil))
			must(t, sw.Commit(t.Context()))
			f.open(t) // a new process has the note and the proof too
			sw, err = f.Resume(t.Context(), "op-then")
			must(t, err)
			p, err := sw.Check(t.Context())
			must(t, err)
			if note := strings.Join(p.Notes, " "); !p.Match || !strings.Contains(note, "/.env and 4 more stay as they are") {
				t.Errorf("%+v", p)
			}
			must(t, sw.Finish(t.Context()))
			var left []string
			for _, path := range []string{"code", ".env", "data/shop.db", "uploads/p", "uploads/env", "uploads/code", "uploads/tmp/x", "mixed/uploads/q", "mixed/page", "new/uploads/r", "made", "made-link", "new/page", "gone"} {
				if content, err := os.ReadFile(f.dir + "/" + path); err == nil {
					left = append(left, path+"="+string(content))
				}
			}
			if want := []string{"code=one", ".env=one", "data/shop.db=one", "uploads/p=one", "uploads/env=one", "uploads/code=two", "uploads/tmp/x=one", "mixed/uploads/q=one", "mixed/page=one", "new/uploads/r=two"}; !slices.Equal(left, want) {
				t.Errorf("%q, want %q", left, want)
			}
			if st, err := os.Stat(f.dir + "/data"); err != nil || !st.ModTime().Equal(stamp) {
				t.Errorf("the folder of the database: %v, %v", st, err)
			}
			f.restore(t, base.ID)
			same(t, "forward again", listing(t, f.dir), before)
		})
	}
}

// TestExcludedThenScope: a restore of a scope speaks only of what stays in it.
func TestExcludedThenScope(t *testing.T) {
	s := excludedThen(t)
	first := s.capture(t)
	s.cfg.Exclude, s.cfg.Skip = nil, nil
	s.open(t)
	makeSince(t, s)
	for i, scope := range []string{"uploads/p", "new", "code"} {
		base := s.capture(t)
		sw, err := s.PrepareScoped(t.Context(), snap.RestoreRequest{ID: snap.RestoreID("op-" + scope[:3]), Target: first.ID, Base: base.ID}, []string{scope})
		must(t, err)
		must(t, sw.Commit(t.Context()))
		p, err := sw.Check(t.Context())
		must(t, err)
		note := []string{s.dir + "/uploads stays as it is", s.dir + "/new/uploads stays as it is", ""}[i]
		if !p.Match || len(p.Notes) > 1 || (len(p.Notes) == 0) != (note == "") || !strings.HasPrefix(strings.Join(p.Notes, " "), note) {
			t.Errorf("%s: %+v, want %q", scope, p, note)
		}
		must(t, sw.Finish(t.Context()))
	}
	for path, want := range map[string]string{"uploads/p": "one", "new/uploads/r": "two", "new/page": "", "code": "one", "made": "two"} {
		if got, _ := os.ReadFile(s.dir + "/" + path); string(got) != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

// TestRulesNotKnown: of a snapshot with nothing but the hash of its rules, as an earlier mulligan made it, nothing is known of what it could not
// have: a restore goes to what it has. Of one that excluded nothing the hash is enough.
func TestRulesNotKnown(t *testing.T) {
	s := excludedThen(t)
	first := s.capture(t)
	r, about, err := s.root("test", first.ID)
	must(t, err)
	if x := rulesOf(about); x == nil || !x.Excludes(".env", false) || !x.Excludes("data/shop.db", false) {
		t.Fatalf("the rules of the snapshot are %v", x)
	}
	about = meta{Created: about.Created, Files: about.Files, Rules: about.Rules}
	if r.Meta, err = json.Marshal(about); err != nil {
		t.Fatal(err)
	}
	b := s.cas.Begin()
	defer b.Discard()
	must(t, b.Commit(cas.Root{Name: r.Name, Hash: r.Hash, Meta: r.Meta}))
	s.cfg.Exclude, s.cfg.Skip = nil, nil
	s.open(t)
	s.restore(t, first.ID)
	if _, err := os.Stat(s.dir + "/.env"); err == nil {
		t.Error("what the snapshot lacks is there")
	}
	if x := rulesOf(meta{Rules: s.ws.Exclude.Hash()}); x == nil || x.Excludes(".env", false) {
		t.Errorf("no rules are known as %v", x)
	}
}
