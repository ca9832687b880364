package packaging

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModulesHash: the hash in package.nix is that of the modules' sources as they are vendored now. It is Nix's hash of a folder, that of its
// archive in Nix's format (Dolstra, The Purely Functional Software Deployment Model, figure 5.2); TestLongFlake has Nix itself compute it.
func TestModulesHash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "vendor")
	run(t, "..", "go", "mod", "vendor", "-o", dir)
	h := sha256.New()
	field(t, h, "nix-archive-1")
	archive(t, h, dir)
	hash := "sha256-" + base64.StdEncoding.EncodeToString(h.Sum(nil))
	if !strings.Contains(string(read(t, "package.nix")), `vendorHash = "`+hash+`"`) {
		t.Errorf("packaging/package.nix has another hash than that of the modules: vendorHash = %q", hash)
	}
}

// archive writes what is at path in the format of Nix's archives.
func archive(t *testing.T, w io.Writer, path string) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	field(t, w, "(", "type")
	switch mode := st.Mode(); {
	case mode.IsDir():
		field(t, w, "directory")
		list, err := os.ReadDir(path) // sorted, as Nix sorts
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			field(t, w, "entry", "(", "name", e.Name(), "node")
			archive(t, w, filepath.Join(path, e.Name()))
			field(t, w, ")")
		}
	case mode.IsRegular():
		field(t, w, "regular")
		if mode&0o100 != 0 {
			field(t, w, "executable", "")
		}
		field(t, w, "contents", string(read(t, path)))
	default:
		t.Fatalf("%s is neither a folder nor a file", path)
	}
	field(t, w, ")")
}

// field writes strings, each after its length and with zeroes up to a multiple of eight bytes.
func field(t *testing.T, w io.Writer, list ...string) {
	t.Helper()
	for _, s := range list {
		err := binary.Write(w, binary.LittleEndian, uint64(len(s)))
		if err == nil {
			_, err = io.WriteString(w, s+strings.Repeat("\x00", -len(s)&7))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
