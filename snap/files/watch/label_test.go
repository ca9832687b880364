package watch

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLabelsLeadToTheFolderAndBack(t *testing.T) {
	w, err := New(Options{Dir: t.TempDir(), CookieDir: filepath.Join(t.TempDir(), "open", "w")})
	must(t, err)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f"), "x")
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	seen := map[string]bool{}
	for _, id := range []uint64{1, 0xf, 0x10, 0xfd, 0x3fa, 0xfdfd, 1 << 40} {
		l := w.label(id, int(f.Fd()))
		if _, err := os.Stat(l + "/f"); err != nil {
			t.Errorf("%x: %v", id, err)
		}
		if seen[l] {
			t.Errorf("%s is not unique", l)
		}
		seen[l] = true
		for _, name := range []string{"", "f", "open", "\xff\n"} {
			event := l
			if name != "" {
				event += "/" + name
			}
			if gotID, gotName, ok := w.unlabel(event); !ok || gotID != id || gotName != name {
				t.Errorf("%q: got %x, %q, %v", event, gotID, gotName, ok)
			}
		}
	}
	for _, p := range []string{"", "/", "/etc/passwd", w.opt.CookieDir, w.opt.CookieDir + "/open/9", w.opt.CookieDir + "/zz/open/9/f"} {
		if id, _, ok := w.unlabel(p); ok {
			t.Errorf("%q was read as %x", p, id)
		}
	}
}
