package output

import (
	"path/filepath"
	"strings"
	"testing"

	"mulligan/ipc"
)

// Paths are printed as a person in the current folder types them, in the heads of patches too, and the lines of a patch stay as they are.
func TestDiffPaths(t *testing.T) {
	const contents = "@@ -1 +1 @@\n--- a/src/shop.go\n+++ b/src/shop.go\n"
	res := ipc.Diff{Changes: []ipc.DiffChange{
		{Layer: "files", Path: "src/shop.go", Operation: "modify", Patch: "--- a/src/shop.go\n+++ b/src/shop.go\n" + contents},
		{Layer: "files", Path: "src/new.go", Operation: "create", Patch: "--- /dev/null\n+++ b/src/new.go\n" + contents},
		{Layer: "files", Path: "logo.png", Operation: "modify", Summary: "3 B → 4 B", NoPatch: "binary"},
		{Layer: "files", Path: ".git/index", Operation: "modify"},
		{Layer: "db:shop", Path: "orders", Operation: "modify", Summary: "1 row"},
	}}
	for stat, want := range map[bool]string{
		false: "--- a/shop.go\n+++ b/shop.go\n" + contents + "--- /dev/null\n+++ b/new.go\n" + contents + "M ../logo.png: 3 B → 4 B (binary)\n" +
			"M db:shop:orders: 1 row\nM ../.git: 1 change in the repository; -- ../.git behind the command shows them\n",
		true: "M\tshop.go\nA\tnew.go\nM\t../logo.png\nM\tdb:shop:orders\nM\t../.git\n",
	} {
		var b strings.Builder
		d := NewDiffPrinter(&Printer{Stdout: NewWriter(&b)})
		d.NameStatus = stat
		d.Path = func(path string) string {
			rel, err := filepath.Rel("/ws/src", filepath.Join("/ws", path))
			if err != nil {
				t.Fatal(err)
			}
			return rel
		}
		d.Print(res)
		d.PrintRepositories()
		if b.String() != want {
			t.Errorf("it prints\n%s\nand should print\n%s", b.String(), want)
		}
	}
}
