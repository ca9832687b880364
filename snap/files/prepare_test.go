package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/testkit"
)

// TestPrecheckOfContents refuses a restore whose contents are not in the store, and names the file. What is missing of a file that stays as
// it is refuses nothing.
func TestPrecheckOfContents(t *testing.T) {
	s := newSite(t)
	lost, other := filepath.Join(s.dir, "lost"), filepath.Join(s.dir, "other")
	content := random(testkit.Rand(t), 5000)
	must(t, os.WriteFile(lost, content, 0o644))
	must(t, os.WriteFile(other, []byte("before"), 0o644))
	first := s.capture(t)
	s.overwrite(t, content[:100], -60, make([]byte, 60)) // the record's header stands before the content
	if err := s.Verify(t.Context(), first.ID, snap.Quick); errs.KindOf(err) != errs.Corrupt {
		t.Fatalf("the damage is not seen: %v", err)
	}
	must(t, os.WriteFile(lost, []byte("after"), 0o644))
	must(t, os.WriteFile(other, []byte("after"), 0o644))
	if err := s.Precheck(t.Context(), first.ID, nil); errs.KindOf(err) != errs.Corrupt || !strings.Contains(err.Error(), lost) {
		t.Errorf("a restore of a lost content: %v", err)
	}
	must(t, s.Precheck(t.Context(), first.ID, []string{"other"}))
	must(t, os.WriteFile(lost, content, 0o644)) // from here on the content can be had again
	must(t, s.Precheck(t.Context(), first.ID, nil))
}
