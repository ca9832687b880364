package output

import (
	"strings"
	"testing"

	"mulligan/ipc"
)

// The preview of a dry run says what would change in a database once.
func TestPreviewSaysItOnce(t *testing.T) {
	change := ipc.Change{Path: "db:shop:orders", Operation: "modify", Summary: "1 row added"}
	more := ipc.Change{Path: "db:shop:items", Operation: "modify", Summary: "2 rows added"}
	res := ipc.RollbackResult{
		DryRun: true, ChangesReverted: []ipc.Change{{Path: "page", Operation: "modify"}, change}, ChangesTotal: 3,
		Preview: &ipc.Preview{Layers: []ipc.LayerPreview{
			{Layer: "files", Modify: 1, Changes: []ipc.Change{{Path: "page", Operation: "modify"}}},
			{Layer: "db:shop", Modify: 2, Changes: []ipc.Change{change, more}},
		}},
	}
	for _, terminal := range []bool{true, false} {
		var b strings.Builder
		p := &Printer{Stdout: NewWriter(&b), Terminal: terminal}
		if err := p.PrintReceipt("cp-1", res); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"page", "db:shop:orders", "db:shop:items"} {
			if n := strings.Count(b.String(), path); n != 1 {
				t.Errorf("terminal %t: %s is there %d times:\n%s", terminal, path, n, b.String())
			}
		}
	}
}
