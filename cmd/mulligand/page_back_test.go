package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"mulligan/ipc"
)

// testPageAfterBack leaves the dialog of a rollback under way by Back: how it ended is told on whatever view the person is then.
func testPageAfterBack(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 5)
	var status atomic.Int32 // that the app's health check gets; 0 is no answer yet
	status.Store(http.StatusOK)
	health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for status.Load() == 0 && r.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond) // a test's server has nothing else to do
		}
		w.WriteHeader(int(max(status.Load(), http.StatusOK)))
	}))
	t.Cleanup(health.Close)
	t.Cleanup(func() { status.Store(http.StatusOK) })
	d.must("app", "set", "--app", "shop", "health.url="+health.URL, "health.timeout=10m")
	a.d.must("create", "--app", "shop", "--notes", "good")
	good := a.checkpoints()[0]
	b := newBrowser(t)
	b.runsFirst(lastingNotices)
	link := ask[ipc.UILink](d, "ui", "--print")
	leave := func(view string, choices func()) {
		a.set(t, "broken")
		status.Store(0)
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link.URL[:strings.Index(link.URL, "/login")]+"/"))
		b.click("#"+string(good.ID)+" button", "Roll back…")
		choices()
		b.see("dialog .preview h3", "would be undone")
		b.click("dialog .row.end button", "Roll back")
		b.see("dialog .stages li.running", "Ask the app how it is")
		b.do(chromedp.Evaluate("history.back(); 0", nil))
		b.gone("dialog")
		b.click(".tabs a", view)
		b.see(".tabs a[aria-current]", view)
	}
	b.do(chromedp.Navigate(link.URL))
	b.see("h1", "shop")
	leave("Storage", func() {})
	status.Store(http.StatusOK)
	b.see("#ended .notice.good", "Roll back shop to good: Done, and proven")
	b.looksRight("ended-well")
	b.do(chromedp.Focus("#ended button", chromedp.ByQuery))
	b.press("\r")
	b.gone("#ended .notice")

	d.must("app", "set", "--app", "shop", "health.timeout=15s") // which the check tries for
	leave("Audit", func() {
		b.click("dialog summary", "Choices")
		b.click("#undo-unhealthy", "")
	})
	status.Store(http.StatusInternalServerError)
	b.see("#ended .notice.bad", "Roll back shop to good: It failed; the app is back where it was")
	b.looksRight("ended-badly")
	b.click(".tabs a", "Timeline")
	b.see(".tabs a[aria-current]", "Timeline")
	b.see("#ended .notice.bad", "It failed")
	b.click("#ended button", "✕")
	b.gone("#ended .notice")
	b.innocent(link.URL)
}

// lastingNotices is a script that keeps the notices which the page removes by itself, after 15 seconds: a test may look at them for longer.
const lastingNotices = `(() => {
	const real = window.setTimeout;
	window.setTimeout = (f, ms, ...args) => ms === 15000 ? 0 : real(f, ms, ...args);
})()`

// testPageFromTheTop goes from view to view on a small screen: each is seen from its top, below the page's header.
func testPageFromTheTop(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	newApp(t, d, 5)
	for i := range 12 {
		d.must("create", "--app", "shop", "--notes", fmt.Sprint("number ", i), "--quiesce", "none")
	}
	b := newBrowser(t)
	b.do(chromedp.EmulateViewport(320, 400), chromedp.Navigate(ask[ipc.UILink](d, "ui", "--print").URL))
	b.see(".note", "number 0")
	atTop := func() {
		b.until("the header to be in sight", `scrollY === 0 && document.activeElement.id === "main"`)
	}
	for _, view := range []string{"Storage", "Audit", "Protects", "Timeline"} {
		b.do(chromedp.Evaluate("scrollTo(0, 1000); 0", nil))
		b.click(".tabs a", view)
		b.see(".tabs a[aria-current]", view)
		atTop()
	}
	b.do(chromedp.Evaluate("scrollTo(0, 1000); history.back(); 0", nil))
	b.see(".tabs a[aria-current]", "Protects")
	atTop()
}
