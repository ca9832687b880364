package main

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"mulligan/ipc"
	"mulligan/testkit"
)

// refusal makes a page's next request that it is told of wait for refused.end, and fail then.
const refusal = `(() => {
	const real = window.fetch;
	window.fetch = async (path, options) => {
		const now = window.refused;
		if (!now || now.asked || options?.method !== now.method || !now.path.test(path)) return real(path, options);
		now.asked = true;
		await now.end.promise;
		setTimeout(() => { now.told = true; }); // once the page has made of the answer what it makes of it
		return new Response(JSON.stringify({ error: { kind: "failed", message: "the disk is full", hint: "make room on it" } }), { status: 500 });
	};
})()`

// refuse has the page's next request with that method and path fail when refused is called.
func (b *browser) refuse(method, path string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf(`window.refused = { method: %q, path: new RegExp(%q), end: Promise.withResolvers() }; 0`, method, path), nil))
}

// refused waits for the request, and has it fail.
func (b *browser) refused() {
	b.t.Helper()
	b.until("the request", "refused.asked")
	b.do(chromedp.Evaluate("refused.end.resolve(); 0", nil))
	b.until("the answer to be there", "refused.told")
}

// testPageClosedDialogs has what dialogs are asked to do fail: while a dialog is open, it says so, and can be asked again; once it is closed,
// a notice says so.
func testPageClosedDialogs(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := startDaemon(t)
	a := newForkable(t, d)
	for i := range 3 {
		d.must("create", "--app", "shop", "--notes", fmt.Sprint("number ", i), "--quiesce", "none")
	}
	fork := ask[ipc.ForkList](d, "fork", "--app", "shop").Forks[0]
	d.must("app", "set", "--app", "shop", "retention.keep_last=1", "retention.daily_days=0") // so that something would be pruned
	row, branch := "#"+string(a.checkpoints()[0].ID), "#"+string(fork.ID)
	b := newBrowser(t)
	b.do(chromedp.Navigate(ask[ipc.UILink](d, "ui", "--print").URL))
	b.see(branch+" button", "Keep…")
	b.do(chromedp.Evaluate(refusal, nil))
	for _, one := range []struct {
		title, method, path string
		open                func()
		button              string
	}{
		{"Create a checkpoint", "POST", "/checkpoints$", func() { b.click("button", "Create checkpoint") }, "Create"},
		{"Delete a checkpoint", "DELETE", "/checkpoints/[^/]+$", func() { b.menu(row, "Delete…") }, "Delete for good"},
		{"Prune", "POST", "/checkpoints/prune$", func() { b.menu(".now", "Prune…") }, "Prune"},
		{"Fork", "POST", "/forks$", func() { b.menu(".now", "Fork…") }, "Make a fork"},
		{"Keep fork 1", "POST", "/keep$", func() { b.click(branch+" button", "Keep…") }, "Keep"},
		{"Drop fork 1", "DELETE", "/forks/[^/]+$", func() { b.menu(branch, "Drop…") }, "Drop for good"},
	} {
		one.open()
		b.see("dialog .row.end button", one.button)
		b.refuse(one.method, one.path)
		b.click("dialog .row.end button", one.button)
		b.refused()
		b.see("dialog [role=alert]", "make room on it")
		b.see("dialog .row.end button", one.button)
		b.refuse(one.method, one.path)
		b.click("dialog .row.end button", one.button)
		b.until("the request", "refused.asked")
		b.press("\x1b")
		b.gone("dialog")
		b.refused()
		b.see("#ended .notice.bad", one.title+": the disk is full")
		b.see("#ended .notice.bad", "make room on it")
		b.click("#ended button", "✕")
		b.gone("#ended .notice")
	}
}
