package systemd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/systemd"
)

func TestParseName(t *testing.T) {
	for _, good := range []string{
		"shop.service", "of-app-shop.service", "shop@1.service", "a:b_c.d.service", `home-me-my\x20app.service`, "app.target", "web.socket", "x.timer", "x.path",
	} {
		if got, err := systemd.ParseName(good); err != nil || got != good {
			t.Errorf("%q: %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{
		"", "shop", ".service", "shop.conf", "-.mount", "dev-sda.device", "user.slice", "shop@.service", "@x.service",
		"../shop.service", "a/b.service", "a b.service", "a\n.service", "a\x00.service", "-x.service", ".x.service", "ä.service",
		"$x.service", strings.Repeat("a", 250) + ".service",
	} {
		got, err := systemd.ParseName(bad)
		if errs.KindOf(err) != errs.Invalid || got != "" {
			t.Errorf("%q: %q, %v", bad, got, err)
		}
	}
}

func FuzzParseName(f *testing.F) {
	f.Add("shop.service")
	f.Add("a@b.socket")
	f.Add("../../x.target")
	f.Fuzz(func(t *testing.T, name string) {
		got, err := systemd.ParseName(name)
		if err != nil {
			return
		}
		if got != name || filepath.Base(name) != name || strings.ContainsAny(name, "/ \n\x00$") || name[0] == '-' || name[0] == '.' {
			t.Errorf("%q passed as %q", name, got)
		}
	})
}
