package records

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"mulligan/daemon/settings"
	"mulligan/errs"
)

// Rebuilt is the result of Rebuild.
type Rebuilt struct {
	Apps, Checkpoints int      // number of them in the new mulligan.db
	Done              []string // descriptions of the work, in sentences
	Problems          []string // sentences about records that could not be restored
}

// NotRebuilt names the records that are not in a content store. The new mulligan.db has only those that could be read from the
// old one.
var NotRebuilt = []string{"turns and their calls", "conversations' checkpoints", "tokens", "the audit trail", "operations under way"}

// Rebuild makes mulligan.db anew from the readable parts of the old one and from the descriptions of apps and checkpoints in
// the content store. No daemon may run. The old file is kept beside the new one.
func Rebuild(ctx context.Context, opt settings.Options) (res Rebuilt, err error) {
	const op = "rebuild records"
	opt.SetDefaults()
	if _, err := os.Stat(filepath.Join(opt.StateDir, "store")); err != nil {
		return res, errs.New(errs.NotFound, op, "%s is no state folder of mulligand: %v", opt.StateDir, err).WithHint("name it with --state-dir")
	}
	r, err := Open(ctx, &opt, true)
	if errs.KindOf(err) == errs.Busy {
		return res, errs.New(errs.Busy, op, "a mulligand is running on %s", opt.StateDir).WithHint("stop it first")
	}
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	defer func() { err = errs.Also(err, r.Close()) }()
	apps, err := r.AllApps(ctx)
	if err != nil {
		return res, err
	}
	cps, err := r.AllCheckpoints(ctx)
	if err != nil {
		return res, err
	}
	return Rebuilt{Apps: len(apps), Checkpoints: len(cps), Done: r.Repaired, Problems: r.trouble}, nil
}

// String returns the result as text.
func (r Rebuilt) String() string {
	var b strings.Builder
	for _, word := range r.Done {
		fmt.Fprintln(&b, word)
	}
	for _, word := range r.Problems {
		fmt.Fprintln(&b, "problem:", word)
	}
	fmt.Fprintf(&b, "mulligan.db has %d apps, removed ones too, and %d checkpoints\n", r.Apps, r.Checkpoints)
	fmt.Fprintf(&b, "no content store knows of %s: those that could be read of the old file are in the new one\n", strings.Join(NotRebuilt, ", "))
	return b.String()
}
