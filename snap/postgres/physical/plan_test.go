package physical

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
)

// A plan that an earlier release wrote is resumed by this one.
func TestEarlierPlan(t *testing.T) {
	dir := t.TempDir()
	zeros := "[" + strings.TrimSuffix(strings.Repeat("0,", 32), ",") + "]"
	check(t, os.WriteFile(filepath.Join(dir, "op-1.json"), []byte(`{"id":"op-1","target":"db-a","base":"db-b","phase":"committing","system":"7312","live":12,`+
		`"fork":{"dir":"0123456789abcdef","inode":13,"end":{"system":"7312","state":"shut down","tli":2,"checkpoint":"0/3000028","next_xid":740}},`+
		`"kept":true,"digest":[1,`+zeros[3:]+`,"rows":true,"from":{"tli":1,"start":"0/2000028","xid":739},"raw_base":null,"raw_target":null,"read":`+zeros+
		`,"changes":[{"Path":"cluster","Operation":"modify","Summary":"from 0/2000028 to 0/3000028"}],"total":7}`), 0o600))
	plans := database.FlatPlans(dir, "cluster", "main", nil)
	names, err := plans.Switches()
	check(t, err)
	if len(names) != 1 || names[0] != "op-1" {
		t.Fatalf("the switches are %q", names)
	}
	var p plan
	check(t, plans.Load("", "op-1", &p))
	head := database.Plan{ID: "op-1", Target: "db-a", Base: "db-b", Phase: database.Committing, Total: 7,
		Changes: []snap.Change{{Path: "cluster", Operation: snap.Modify, Summary: "from 0/2000028 to 0/3000028"}}}
	if p.ID != head.ID || p.Target != head.Target || p.Base != head.Base || p.Phase != head.Phase || p.Total != head.Total || len(p.Changes) != 1 || p.Changes[0] != head.Changes[0] {
		t.Errorf("the plan begins with %+v", p.Plan)
	}
	if p.System != "7312" || p.Live != 12 || p.Fork.Inode != 13 || p.Fork.End.TLI != 2 || p.Fork.End.NextXID != 740 || !p.Kept || p.Digest[0] != 1 || !p.Rows || p.From.XID != 739 {
		t.Errorf("the plan is %+v", p)
	}
	check(t, plans.Advance(&p, database.Undoing))
	var again plan
	check(t, plans.Load("", "op-1", &again))
	if again.Phase != database.Undoing || again.Fork != p.Fork || again.From != p.From {
		t.Errorf("written and read again the plan is %+v", again)
	}
	check(t, plans.Drop("op-1"))
	if list, err := os.ReadDir(dir); err != nil || len(list) != 0 || errs.KindOf(plans.Load("", "op-1", &p)) != errs.NotFound {
		t.Errorf("dropped, it leaves %v, %v", list, err)
	}
}
