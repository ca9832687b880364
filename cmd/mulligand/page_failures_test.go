package main

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/input"
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
		return { ok: false, status: 500, json: async () => {
			setTimeout(() => { now.told = true; }); // once the page has made of the answer what it makes of it
			return { error: { kind: "failed", message: "the disk is full", hint: "make room on it" } };
		} };
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
		b.enter("dialog .row.end button", one.button)
		b.refused()
		b.see("dialog [role=alert]", "make room on it")
		b.see("dialog .row.end button", one.button)
		b.until("the button to have the focus again", fmt.Sprintf("document.activeElement.textContent === %q", one.button))
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

// testPageFailures has what the timeline asks for fail: the page says so, and goes on, by itself or when it is asked again. What is no longer
// wanted fails unseen.
func testPageFailures(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 5)
	a.create()
	b := newBrowser(t)
	b.runsFirst(thousands + ";" + refusal)
	b.do(chromedp.Navigate(ask[ipc.UILink](d, "ui", "--print").URL))
	b.see(".cp .note", "note 3000")
	rows := func(n int) {
		b.t.Helper()
		b.until(fmt.Sprint(n, " rows, and no trouble"), fmt.Sprintf(`document.querySelectorAll(".cp").length === %d && !document.querySelector(".view [role=alert]")`, n))
	}

	// A kind is chosen, which is the same checkpoints here.
	b.refuse("GET", "trigger=deploy")
	b.click(".filters label", "Deploys")
	b.refused()
	b.see(".view [role=alert]", "the disk is full")
	b.gone(".cp")
	b.until("the kinds and the search to stay", `document.querySelector("#search").checkVisibility()`)
	d.must("create", "--app", "shop", "--notes", "afterwards", "--quiesce", "none")
	b.see(".cp .note", "afterwards")
	rows(200)
	b.refuse("GET", "trigger=manual")
	b.click(".filters label", "Manual")
	b.refused()
	b.click(".view button", "Try again")
	rows(200)
	b.refuse("GET", "trigger=agent")
	b.click(".filters label", "Turns")
	b.until("the request", "refused.asked")
	b.do(chromedp.Evaluate(`document.querySelector(".now").old = true; 0`, nil))
	b.click(".filters label", "All")
	b.until("the kind that was chosen last", `!document.querySelector(".now").old`)
	b.refused()
	rows(200)

	// A row is drawn anew while its checkpoint is verified.
	newest := string(a.checkpoints()[0].ID)
	b.refuse("POST", "/verify$")
	b.menu("#"+newest, "Verify")
	b.until("the request", "refused.asked")
	d.must("pin", newest, "--app", "shop")
	b.see("#"+newest+" .badge", "pinned")
	b.refused()
	b.see("#ended .notice.bad", "Verify afterwards: the disk is full")

	// Changes are listed, and one of them is opened.
	shell(t, a.ws, "mkdir many; for i in $(seq 599); do echo $i >many/$i; done")
	b.refuse("GET", "/diff\\?")
	b.menu("#"+newest, "What changed")
	b.refused()
	b.see("dialog [role=alert]", "the disk is full")
	b.gone("dialog [role=status]")
	b.click("dialog button", "Try again")
	b.see("dialog [role=status]", "600 changes.")
	b.refuse("GET", "offset=500")
	b.enter("dialog button", "Show more of 600")
	b.refused()
	b.until("the way to try again to have the focus", `document.activeElement.textContent === "Try again"`)
	b.press("\r")
	b.until("all changes, and the focus at the first of the new ones", `(() => {
		const all = [...document.querySelectorAll("dialog details.change")];
		return all.length === 600 && all[500].contains(document.activeElement); })()`)
	b.refuse("GET", "patch=")
	b.click("dialog summary", "many/1")
	b.refused()
	b.see("dialog details [role=alert]", "the disk is full")
	b.click("dialog summary", "many/1") // it is closed
	b.click("dialog summary", "many/1")
	b.see("dialog .patch .plus", "+1")
	b.gone("dialog details [role=alert]")
	b.press("\x1b")
	b.gone("dialog")

	// Older ones are asked for, and looked through.
	b.refuse("GET", "before=")
	b.enter("button", "Show older")
	b.refused()
	b.see(".view [role=alert]", "the disk is full")
	b.until("the way to try again to have the focus", `document.activeElement.textContent === "Try again"`)
	b.press("\r")
	rows(400)
	b.until("the first of the new rows to have the focus", `document.activeElement.closest(".cp")?.textContent.includes("note 2801")`)
	b.refuse("GET", "before=")
	b.do(chromedp.Focus("#search"), input.InsertText("note 17"))
	b.refused()
	b.see(".tools [role=status]", "400 of 3,001 searched.")
	b.click(".view button", "Try again")
	b.see(".tools [role=status]", "159 found among 3,001 checkpoints.")
	rows(159)
}
