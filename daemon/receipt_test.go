package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mulligan/ipc"
)

// testReceiptOfCommit takes back a commit of many files and some rows: the receipt lists
// the app's files, the repository in one line, and the database as the dry run does.
func testReceiptOfCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	git := `git -c user.name=x -c user.email=x@y `
	sh(t, `cd "$1" && git init -q -b main . && echo shop.db >.gitignore && git add -A && `+git+`commit -qm one`, w.ws())
	sh(t, `sqlite3 "$1/shop.db" "CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (1)"`, w.ws())
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	sh(t, `cd "$1" && mkdir src && for i in $(seq 70); do echo $i >src/$i; done && git add -A && `+git+`commit -qm two && git branch topic`, w.ws())
	sh(t, `sqlite3 "$1/shop.db" "INSERT INTO orders VALUES (2), (3)"`, w.ws())
	dry := goBack(t, d, cp.ID, ipc.RollbackRequest{DryRun: true})
	res := goBack(t, d, cp.ID, ipc.RollbackRequest{})
	if !slices.Equal(dry.ChangesReverted, res.ChangesReverted) || dry.ChangesTotal != res.ChangesTotal {
		t.Errorf("the dry run says %+v, the receipt %+v", dry.ChangesReverted, res.ChangesReverted)
	}
	var src, repository, db []string
	for _, c := range res.ChangesReverted {
		switch {
		case strings.HasPrefix(c.Path, "src"):
			src = append(src, c.Path)
		case strings.HasPrefix(c.Path, ".git"):
			repository = append(repository, c.Path+": "+c.Summary)
		case strings.HasPrefix(c.Path, "db:"):
			db = append(db, c.Path+": "+c.Summary)
		}
	}
	if len(src) != 71 || len(res.ChangesReverted) != res.ChangesTotal || res.ChangesTotal != 71+len(repository)+len(db) {
		t.Errorf("%d of src, %d in all of %d", len(src), len(res.ChangesReverted), res.ChangesTotal)
	}
	if len(repository) != 1 || !strings.Contains(repository[0], "→") || !strings.Contains(repository[0], "branches main, topic") || !strings.Contains(repository[0], "index") {
		t.Errorf("of the repository: %q", repository)
	}
	if len(db) != 1 || !strings.Contains(db[0], "orders") || !strings.Contains(db[0], "(2 more)") {
		t.Errorf("of the database: %q", db)
	}
	for _, want := range []string{"stage:vm-revert:ok", "hash:files:blake3:", "hash:db:shop:blake3:", "audit:"} {
		if !slices.ContainsFunc(res.EvidenceAnchors, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("no evidence %s in %q", want, res.EvidenceAnchors)
		}
	}
	trail, err := d.Audit(t.Context(), root, "shop", 2, false)
	if err != nil || !slices.ContainsFunc(trail.Entries, func(e ipc.AuditEntry) bool {
		return e.Action == "rollback" && slices.Contains(res.EvidenceAnchors, fmt.Sprintf("audit:%d", e.Seq))
	}) {
		t.Errorf("%v, %q", err, res.EvidenceAnchors)
	}
}

// testReceiptOfCalledOff says what was put back, and nothing of changes or of a match.
func testReceiptOfCalledOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var fail failpoint
	opt := w.options()
	opt.Failpoint = fail.step
	d := w.openAs(t, opt)
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "one")
	for _, c := range []struct {
		step string
		back []string
	}{
		{"prepare db:shop", nil},
		{"commit db:shop", []string{"db:shop: was not changed", "files: put back, and compared with the state before"}},
	} {
		fail.set(c.step)
		res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
		if err == nil || res.RolledBack || len(res.ChangesReverted) > 0 || res.ChangesTotal > 0 || res.Verification != nil || res.Confidence != 0 || !slices.Equal(res.PutBack, c.back) {
			t.Errorf("%s: %v, %+v", c.step, err, res)
		}
		if slices.ContainsFunc(res.EvidenceAnchors, func(s string) bool { return strings.HasPrefix(s, "tool:") }) {
			t.Errorf("%s: %q", c.step, res.EvidenceAnchors)
		}
	}
	fail.set("")
	no := false
	if res := goBack(t, d, cp.ID, ipc.RollbackRequest{VerifyRestore: &no}); res.Confidence != 0.5 || res.Verification != nil {
		t.Errorf("unverified: %+v", res)
	}
}
