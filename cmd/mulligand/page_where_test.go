package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"mulligan/ipc"
)

// testPageOpensOn follows the links of `mulligan ui` in an app's folder, of another app by its name, and of none.
func testPageOpensOn(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	for _, slug := range []string{"big", "shop"} {
		dir := filepath.Join(d.dir, slug, "sub")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		d.must("app", "add", "--slug", slug, "--dir", filepath.Dir(dir))
	}
	b := newBrowser(t)
	in := func(dir string, args ...string) string {
		return ask[ipc.UILink](d.in(filepath.Join(d.dir, dir)), append([]string{"ui", "--print"}, args...)...).URL
	}
	for _, tt := range []struct{ name, link, app string }{
		{"in a folder of shop", in("shop/sub"), "shop"},
		{"for shop by its name", in("big", "--app", "shop"), "shop"},
		{"for shop by its id", in(".", "--app", string(ask[ipc.App](d, "app", "show", "--app", "shop").ID)), "shop"},
		{"outside of any app", in("."), "big"},
	} {
		t.Log(tt.name)
		b.do(chromedp.Navigate(tt.link))
		b.see("h1", tt.app)
	}
	if _, _, code := d.mulligan("ui", "--app", "shoq"); code == 0 {
		t.Error("an app that is not there is opened")
	}
}
