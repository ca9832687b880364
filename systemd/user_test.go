package systemd_test

import (
	"testing"

	"mulligan/errs"
	"mulligan/systemd"
)

func TestUserManager(t *testing.T) {
	ctx, h, _ := setup(t)
	user := h.StartUser(t)
	user.WriteUnit(t, "mine.service", "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n")
	t.Setenv("XDG_RUNTIME_DIR", user.RuntimeDir)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "")
	m, err := systemd.Connect(ctx, systemd.Options{User: true})
	must(t, err)
	defer m.Close()
	must(t, m.Reload(ctx))
	u := m.Unit("mine.service")
	must(t, u.Start(ctx))
	if !state(t, u).Running() {
		t.Errorf("%+v", state(t, u))
	}
	must(t, u.Stop(ctx))
	if state(t, u).Running() {
		t.Errorf("%+v", state(t, u))
	}
	_, err = m.Unit("none.service").State(ctx)
	wantErr(t, err, errs.NotFound, "systemctl --user")
}
