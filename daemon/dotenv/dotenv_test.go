package dotenv

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap/beneath"
	"mulligan/testkit/sysfault"
)

const sample = "# PORT=1\r\nPORT=3000\r\nexport  PORT = \"3000\" # again\nTEXT=\"a\nPORT=3000\n\\\"\nend\" \nKEY='\nPORT=3000\n'\n" +
	"PORT_TOO=3000\nDATABASE_URL='sqlite:///srv/shop/x.db'\nEMPTY=\nPORT=3000"

// TestLines replaces the lines of variables, and puts them back: each line that is none of these, in values of several lines too, stays
// as it is.
func TestLines(t *testing.T) {
	if got, want := Values([]string{"PORT=1\nA= b c # d\n", sample}), map[string]string{
		"A": "b c", "PORT": "3000", "PORT_TOO": "3000", "DATABASE_URL": "sqlite:///srv/shop/x.db", "EMPTY": "",
	}; !maps.Equal(got, want) {
		t.Errorf("the values are %q, want %q", got, want)
	}
	lines := Lines([]string{".env"}, []string{sample}, func(variable, value string) (string, bool) {
		switch variable {
		case "PORT":
			return "4711", true
		case "DATABASE_URL":
			return strings.ReplaceAll(value, "/srv/shop", "/srv/fork"), true
		}
		return "", false
	})
	want := strings.NewReplacer("\nPORT=3000\r\nexport  PORT = \"3000\" # again\n", "\nPORT=4711\r\nexport  PORT = 4711\n", "/srv/shop", "/srv/fork", "EMPTY=\nPORT=3000", "EMPTY=\nPORT=4711").Replace(sample)
	got := replace(".env", sample, lines, false)
	if got != want {
		t.Errorf("the fork's file is %q, want %q", got, want)
	}
	if again := replace(".env", got, lines, false); again != got {
		t.Errorf("a second time, it is %q", again)
	}
	if other := replace("other", sample, lines, false); other != sample {
		t.Errorf("another file is %q", other)
	}
	if back := replace(".env", got, lines, true); back != sample {
		t.Errorf("put back, it is %q, want %q", back, sample)
	}
	edited := strings.Replace(got, "PORT=4711", "PORT=5", 1) + "\nNEW=1\n"
	if back, want := replace(".env", edited, lines, true), strings.Replace(sample, "PORT=3000", "PORT=5", 1)+"\nNEW=1\n"; back != want {
		t.Errorf("with a line that was changed, put back it is %q, want %q", back, want)
	}
}

// TestReplace replaces lines in files: their modes stay, nothing but regular files beneath the folder is read or written, and no error has
// their contents.
func TestReplace(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	ws := filepath.Join(dir, "ws")
	check(os.MkdirAll(filepath.Join(ws, "config"), 0o755))
	env, outside := filepath.Join(ws, "config", ".env"), filepath.Join(dir, "outside")
	check(os.WriteFile(env, []byte("PORT=1\nSECRET=x\n"), 0o640))
	check(os.WriteFile(outside, []byte("PORT=1\n"), 0o600))
	files := []string{"config/.env", "none"}
	texts, err := Read(t.Context(), privsep.Self, ws, files)
	if err != nil || !slices.Equal(texts, []string{"PORT=1\nSECRET=x\n", ""}) {
		t.Fatalf("read are %q, %v", texts, err)
	}
	lines := []ipc.DotenvLine{{File: "config/.env", Variable: "PORT", Was: "PORT=1", Is: "PORT=2"}}
	for _, parents := range []bool{false, false, true, true} {
		want := map[bool]string{false: "PORT=2\nSECRET=x\n", true: "PORT=1\nSECRET=x\n"}[parents]
		check(Replace(t.Context(), privsep.Self, ws, lines, parents))
		info, err := os.Stat(env)
		check(err)
		if got, err := os.ReadFile(env); err != nil || string(got) != want || info.Mode() != 0o640 {
			t.Errorf("the file is %q, %v, with mode %v", got, err, info.Mode())
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(env)); err != nil || len(entries) != 1 {
		t.Errorf("in the folder are %v, %v", entries, err)
	}
	for name, make := range map[string]func(path string) error{
		"link":   func(path string) error { return os.Symlink(outside, path) },
		"fifo":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"large": func(path string) error {
			return os.WriteFile(path, []byte("PORT=1\n"+strings.Repeat("#", maxFile)), 0o600)
		},
	} {
		check(make(filepath.Join(ws, name)))
		bad := []ipc.DotenvLine{{File: name, Variable: "PORT", Was: "PORT=1", Is: "PORT=2"}}
		_, err := Read(t.Context(), privsep.Self, ws, []string{name})
		for _, err := range []error{err, Replace(t.Context(), privsep.Self, ws, bad, false)} {
			if err == nil || errs.HintOf(err) == "" || strings.Contains(err.Error(), "PORT") {
				t.Errorf("a %s: %v", name, err)
			}
		}
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "PORT=1\n" {
		t.Errorf("a file outside is %q, %v", got, err)
	}
}

// FuzzLines: what is replaced in any text is put back to it byte by byte.
func FuzzLines(f *testing.F) {
	f.Add(sample)
	f.Add("PORT=\"\nPORT=3\n")
	f.Fuzz(func(t *testing.T, text string) {
		if same := each(text, func(_, head, rest string) string { return head + rest }); same != text {
			t.Fatalf("unchanged it is %q", same)
		}
		lines := Lines([]string{"f"}, []string{text}, func(variable, _ string) (string, bool) { return "4711", variable == "PORT" })
		is := replace("f", text, lines, false)
		if strings.Count(is, "\n") != strings.Count(text, "\n") || replace("f", is, lines, false) != is {
			t.Fatalf("replaced it is %q", is)
		}
		if back := replace("f", is, lines, true); back != text {
			t.Fatalf("put back it is %q", back)
		}
	})
}

// TestReplaceIsSynced: after a power cut a dotenv file is the old one or the new one, whole.
func TestReplaceIsSynced(t *testing.T) {
	calls := sysfault.Trace(t, nil, func(dir string) error {
		root, err := beneath.Open(dir)
		if err != nil {
			return err
		}
		return write(root, ".env", "PORT=1\n", 0o600)
	})
	if !slices.Contains(calls, "rename .env") {
		t.Errorf("it did %q", calls)
	}
	for _, lost := range sysfault.Unsynced(calls) {
		t.Error(lost)
	}
}
