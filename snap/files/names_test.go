package files

import (
	"os/exec"
	"slices"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/rights"
)

// TestNames lists folders of the workspace and of a snapshot: what is left out, also below a folder that is, a link
// to a folder, and a folder of root's are not looked into.
func TestNames(t *testing.T) {
	d := newSite(t, func(c *Config) {
		c.Exclude, c.Reader = []string{"*.log", "/out/", "!kept"}, rights.Reader{UID: 12345, GID: 12345}
	})
	script(t, d.dir, `mkdir -p src/deep secret out/deep && touch out/kept out/deep/kept a b.log src/main.go src/deep/x secret/key && ln -s src link && chmod 700 secret`)
	s := d.capture(t)
	script(t, d.dir, `rm a && touch new`)
	for _, c := range []struct {
		id   snap.SnapshotID
		dir  string
		want []string
		kind errs.Kind
	}{
		{s.ID, ".", []string{"a", "link", "secret", "src"}, ""}, {"", ".", []string{"link", "new", "secret", "src"}, ""},
		{s.ID, "src", []string{"deep", "main.go"}, ""}, {"", "src/deep", []string{"x"}, ""},
		{"", "out", nil, ""}, {"", "out/deep", nil, ""},
		{s.ID, "none", nil, ""}, {"", "none/such", nil, ""}, {s.ID, "a", nil, ""}, {"", "link", nil, ""}, {s.ID, "link", nil, ""},
		{s.ID, "secret", nil, errs.Denied}, {"", "secret", nil, errs.Denied}, {"", "../x", nil, errs.Invalid},
	} {
		got, err := d.Names(t.Context(), c.id, c.dir)
		slices.Sort(got)
		if !slices.Equal(got, c.want) || err != nil && errs.KindOf(err) != c.kind || err == nil && c.kind != "" {
			t.Errorf("%q of %q: %q, %v", c.dir, c.id, got, err)
		}
	}
}

func script(t *testing.T, dir, text string) {
	t.Helper()
	cmd := exec.Command("sh", "-euc", text)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
