//go:build cgo && libvirt_dlopen

package daemon_test

import (
	"strings"
	"testing"

	"mulligan/ipc"
	"mulligan/ipc/errs"
)

// TestLibvirtdAway: with libvirtd away, what is not of the domain can be taken back, and the
// error of a whole rollback says how.
func TestLibvirtdAway(t *testing.T) {
	w := newVMWorld(t, func(a *ipc.App) { a.Run = []string{"sleep", "1000000"} })
	write(t, w.ws(), "work", "zero")
	cp := w.create(t, ipc.CreateRequest{}).ID
	write(t, w.ws(), "work", "one")
	if err := w.host.Hold(true); err != nil {
		t.Fatal(err)
	}
	if err := w.host.KillLibvirtd(); err != nil {
		t.Fatal(err)
	}
	_, err := w.d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{}, nil)
	if err == nil || !strings.Contains(errs.HintOf(err), "--without disk") {
		t.Errorf("a whole rollback: %v (%s)", err, errs.HintOf(err))
	}
	for name, req := range map[string]ipc.RollbackRequest{
		"layer:files": {Scope: []string{"layer:files"}}, "a path": {Scope: []string{"work"}}, "without disk": {Without: []string{"disk"}},
	} {
		write(t, w.ws(), "work", "one")
		res, err := w.d.Rollback(t.Context(), root, "shop", cp, req, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := read(t, w.ws(), "work"); got != "zero" || !strings.Contains(strings.Join(res.Warnings, "\n"), "is not known") {
			t.Errorf("%s: work says %q, the warnings are %q", name, got, res.Warnings)
		}
	}
	if err := w.host.Hold(false); err != nil {
		t.Fatal(err)
	}
	w.reconnect(t)
	if !w.up(t) {
		t.Error("the guest is off")
	}
}
