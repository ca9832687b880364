package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"mulligan/ipc"
	"mulligan/testkit"
)

// hostile is a file's name that would run if it ever became markup, and that
// turns the text after it around.
const hostile = "<img src=x onerror=\"document.title='owned'\">\u202e.txt"

// testPage is a person at mulligan's page in a real Chromium: everything goes
// through what can be seen and clicked.
func testPage(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 100)
	b := newBrowser(t)
	link := ask[ipc.UILink](d, "ui", "--print")
	b.do(chromedp.Navigate(link.URL))
	b.see("h1", "shop")

	b.click("button", "Create checkpoint")
	b.do(chromedp.SendKeys("#notes", "<script>alert(1)</script>", chromedp.ByQuery))
	b.click("dialog button", "Create")
	b.see(".entry .note", "<script>alert(1)</script>")
	b.looksRight("timeline")
	good := a.checkpoints()[0]

	a.set(t, "broken")
	a.write(t, hostile, "x")
	b.click("#"+string(good.ID)+" button", "Roll back…")
	b.see("dialog .changes .name", `onerror="document.title='owned'">\u{202e}.txt`)
	b.looksRight("preview")
	if got := a.word(t); got != "broken" {
		t.Fatalf("the preview changed the app: %s", got)
	}
	b.rollBack("Roll back")
	if got := a.word(t); got != "zero" {
		t.Fatalf("after the rollback the app is in state %s", got)
	}
	b.looksRight("receipt")
	b.enter("dialog button", "↻ Roll forward again…")
	b.until("the focus to stay in the dialog", `document.activeElement.closest("dialog")`)
	b.rollBack("Roll forward")
	if got := a.word(t); got != "broken" {
		t.Fatalf("after rolling forward the app is in state %s", got)
	}
	b.click("dialog button", "Close")

	entry := "#" + string(good.ID)
	b.menu(entry, "Pin")
	b.see(entry+" .badge", "pinned")
	b.menu(entry, "Delete…")
	b.click("dialog button", "Delete for good")
	b.see("dialog .notice.bad", "pinned")
	b.click("dialog button", "Keep it")
	b.menu(entry, "What changed")
	b.see("dialog table.db th", "words")
	b.click("dialog summary", "page.html")
	b.see("dialog .patch .minus", "-zero")
	b.see("dialog .patch .plus", "+broken")
	b.looksRight("changes")
	b.click("dialog button", "✕")
	b.menu(entry, "Unpin")
	b.gone(entry + " .pinned")
	b.menu(entry, "Delete…")
	b.click("dialog button", "Delete for good")
	b.gone(entry)

	for _, view := range []string{"Storage", "Audit", "Protects"} {
		b.click(".tabs a", view)
		b.see(".tabs a[aria-current]", view)
		b.looksRight(strings.ToLower(view))
	}
	b.do(chromedp.Click("#health", chromedp.ByQuery))
	b.see("h1", "The daemon")
	b.looksRight("health")

	// The link was good once, and leaving ends the session at once.
	b.do(chromedp.Navigate(link.URL))
	b.see("p", "has been used")
	b.do(chromedp.Navigate(link.URL[:strings.Index(link.URL, "/login")] + "/#/health"))
	b.click("button", "Log out of this page")
	b.see("h1", "Nobody is logged in here")
	b.innocent(link.URL)
}

// testPageForks sees forks as branches of the timeline, makes one, sees what another one changed, keeps it, and drops the rest.
func testPageForks(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := startDaemon(t)
	a := newForkable(t, d)
	a.set(t, "broken")
	made := ask[ipc.ForkList](d, "fork", "--app", "shop", "--count", "2").Forks
	(&testApp{d: d, ws: made[1].Workspace}).set(t, "repaired")
	b := newBrowser(t)
	link := ask[ipc.UILink](d, "ui", "--print")
	b.do(chromedp.Navigate(link.URL))
	b.see("h1", "shop")
	origin, second := "#"+string(made[0].Fork.Origin), "#"+string(made[1].ID)
	b.see(origin+" .branch a", "Fork 1")
	b.see(origin+" "+second+" a", made[1].Fork.Ports[0].Address)
	b.looksRight("forks")

	b.menu(origin, "Fork…")
	b.do(chromedp.SendKeys("#fork-name", "third", chromedp.ByQuery))
	b.click("dialog button", "Make a fork")
	b.see(origin+" .branch a", "Fork third")
	b.menu(second, "What it changed")
	b.see("dialog .name", "page.html")
	b.see("dialog p", "It is healthy.")
	b.looksRight("fork-changes")
	b.click("dialog button", "Close")

	b.click(second+" a", "Fork 2")
	b.see("h1", "shop-2")
	b.see(".app-head p", "fork of shop")
	b.click(".app-head p a", "shop")
	b.see("h1", "shop")

	b.click(second+" button", "Keep…")
	b.see("dialog .changes .name", "page.html")
	b.looksRight("keep")
	if word := a.word(t); word != "broken" {
		t.Fatalf("the preview changed the app: %s", word)
	}
	b.enter("dialog button", "Keep")
	b.see("dialog h3", "Done, and proven")
	b.until("the focus to stay in the dialog", `document.activeElement.closest("dialog")`)
	b.click("dialog button", "Close")
	b.gone(second)
	if word := a.word(t); word != "repaired" {
		t.Fatalf("after keep the app has %s", word)
	}
	for _, name := range []string{"1", "third"} {
		id := "#" + string(made[0].ID)
		if name == "third" {
			id = "#" + string(ask[ipc.App](d, "app", "show", "--app", "shop-third").ID)
		}
		b.menu(id, "Drop…")
		b.click("dialog button", "Drop for good")
		b.gone(id)
	}
	if list := ask[ipc.ForkList](d, "forks", "--app", "shop").Forks; len(list) != 0 {
		t.Errorf("left are %+v", list)
	}
	b.innocent(link.URL)
}

// testPageByKeyboard makes a checkpoint, takes a change back, and pins without a mouse, and finds the keys listed.
func testPageByKeyboard(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 20)
	b := newBrowser(t)
	b.do(chromedp.Navigate(ask[ipc.UILink](d, "ui").URL))
	b.see("button", "Create checkpoint")
	b.press("c")
	b.see("dialog h2", "Create a checkpoint")
	b.press("first", "\r")
	b.see(".entry .note", "first") // by letters that are keys elsewhere
	a.set(t, "broken")
	b.press("j", "j", "\r")
	b.see("dialog .changes .name", "page.html")
	b.tabTo("Choices")
	b.press("\r", "\t", "x")
	b.until("what is seen to be no longer what is wanted", `document.activeElement.value === "x" && !`+matching("dialog .row.end button", "Roll back"))
	b.press(kb.Backspace, "\t") // the field is as it was: the browser tells of no change
	b.see("dialog .row.end button", "Roll back")
	b.tabTo("Roll back")
	b.press("\r")
	b.see("dialog h3", "Done, and proven")
	b.press("\x1b")
	b.gone("dialog")
	if got := a.word(t); got != "zero" {
		t.Fatalf("the app is in state %s", got)
	}

	first := "#" + string(a.checkpoints()[1].ID)
	b.see(first, "first")
	b.do(chromedp.Evaluate(matching(first+" .main-action", "")+".focus(); 0", nil)) // in one step: the row may be drawn anew
	b.press("d")
	b.see("dialog h2", "What changed")
	b.press("\x1b")
	b.gone("dialog")
	b.press("m", kb.ArrowDown, kb.ArrowDown)
	b.until("the third of the menu to have the focus", `document.activeElement.textContent === "Pin"`)
	b.press("\r")
	b.see(first+" .badge", "pinned")
	b.press("2")
	b.see(".tabs a[aria-current]", "Storage")
	b.press("?")
	b.see("dialog th", "j")
	b.looksRight("keys")
	b.click("#single-keys", "")
	b.press("\x1b")
	b.gone("dialog")
	b.press("1")
	b.do(chromedp.Evaluate(`document.querySelector("#keys").click()`, nil)) // the list is still one button away
	b.see("dialog th", "j")
	b.press("\x1b")
	b.gone("dialog")
	b.see(".tabs a[aria-current]", "Storage")
}

// testPageFocus has the focus where it was once the page is drawn anew, or beside it.
func testPageFocus(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 5)
	b := newBrowser(t)
	b.do(chromedp.Navigate(ask[ipc.UILink](d, "ui", "--print").URL))
	b.see("h2", "No checkpoint yet")
	b.enter("button", "Create checkpoint")
	b.see("dialog h2", "Create a checkpoint")
	b.press("first", "\r")
	b.see(".entry .note", "first")
	b.until("the focus to stay at the button", `document.activeElement.textContent === "Create checkpoint"`)
	for _, notes := range []string{"second", "third"} {
		d.must("create", "--app", "shop", "--notes", notes, "--quiesce", "none")
	}
	b.see(".entry .note", "third")
	list := a.checkpoints() // newest first
	for _, step := range []struct{ deleted, next int }{{1, 2}, {2, 0}} {
		row := "#" + string(list[step.deleted].ID)
		b.do(chromedp.Evaluate(matching(row+" .main-action", "")+".focus(); 0", nil))
		b.press("m", kb.End, "\r")
		b.enter("dialog button", "Delete for good")
		b.gone(row)
		b.until("the focus to go to the row beside it", fmt.Sprintf("document.activeElement.closest('.cp')?.id === %q", list[step.next].ID))
	}
}

// browser is a real Chromium with nothing of anybody's in it.
type browser struct {
	t   *testing.T
	ctx context.Context
	axe string

	mu       sync.Mutex
	requests []string
	faults   []string
}

// newBrowser starts a browser whose pages wait ten times as long as usual until they say that the daemon does not answer: it may be busy, and what a
// page says is in its pictures.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	b := plainBrowser(t)
	b.runsFirst(`{ const timeout = AbortSignal.timeout; AbortSignal.timeout = (ms) => timeout.call(AbortSignal, 10 * ms); }`)
	return b
}

func plainBrowser(t *testing.T) *browser {
	t.Helper()
	testkit.Need(t, "chromium")
	axe, err := os.ReadFile(filepath.Join(fromNPM(t, "axe", 3), "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, axe: string(axe)}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(2*time.Minute), chromedp.Flag("disable-dev-shm-usage", true))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {})) // events that are newer than the library
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 8*time.Minute)
	t.Cleanup(cancel)
	b.ctx = ctx
	chromedp.ListenTarget(ctx, b.note)
	// In the browser's time zone it is about noon: if midnight passed during a test, the page would have "Yesterday" where the expected text has "Today".
	b.do(network.Enable(), emulation.SetTimezoneOverride(fmt.Sprintf("Etc/GMT%+d", time.Now().UTC().Hour()-12)),
		emulation.SetLocaleOverride().WithLocale("en-US"), chromedp.EmulateViewport(1280, 900))
	return b
}

// note keeps what the page does that it should not.
func (b *browser) note(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, ev.Request.URL)
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, ev.ExceptionDetails.Error())
	case *cdpage.EventJavascriptDialogOpening:
		b.faults = append(b.faults, "a dialog: "+ev.Message)
	}
}

// innocent fails the test for scripts that threw, dialogs of hostile names, and
// requests that went anywhere but to the daemon.
func (b *browser) innocent(link string) {
	b.t.Helper()
	origin := link[:strings.Index(link, "/login")]
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		b.t.Errorf("the page: %s", f)
	}
	for _, r := range b.requests {
		if !strings.HasPrefix(r, origin+"/") {
			b.t.Errorf("a request to %s", r)
		}
	}
}

func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// runsFirst has the browser run a script in each page before the page's own.
func (b *browser) runsFirst(script string) {
	b.t.Helper()
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := cdpage.AddScriptToEvaluateOnNewDocument(script).Do(ctx)
		return err
	}))
}

// until waits until the JavaScript expression is true. While the browser goes
// from one page to another, nothing can be asked.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(10 * time.Millisecond) {
		var ok bool
		err := chromedp.Run(b.ctx, chromedp.Evaluate("!!("+expression+")", &ok))
		if ok && err == nil {
			return
		}
		if b.ctx.Err() != nil || time.Now().After(deadline) {
			var text string
			_ = chromedp.Run(b.ctx, chromedp.Evaluate("document.body.innerText", &text)) // for the message
			b.t.Fatalf("waited in vain for %s: %v; the page says:\n%s", what, err, text)
		}
	}
}

// matching is an expression for the first element of the selector with the text in it.
func matching(selector, text string) string {
	s, _ := json.Marshal(selector) // strings: this cannot fail
	w, _ := json.Marshal(text)
	return fmt.Sprintf("[...document.querySelectorAll(%s)].find(e => e.textContent.includes(%s) && !e.disabled)", s, w)
}

func (b *browser) see(selector, text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("%q in %s", text, selector), matching(selector, text))
}

func (b *browser) gone(selector string) {
	b.t.Helper()
	s, _ := json.Marshal(selector)
	b.until(selector+" to go", fmt.Sprintf("!document.querySelector(%s)", s))
}

func (b *browser) click(selector, text string) {
	b.t.Helper()
	b.see(selector, text)
	b.do(chromedp.Evaluate(matching(selector, text)+".click()", nil))
}

// enter presses Enter on an element.
func (b *browser) enter(selector, text string) {
	b.t.Helper()
	b.see(selector, text)
	b.do(chromedp.Evaluate(matching(selector, text)+".focus(); 0", nil))
	b.press("\r")
}

// menu opens a row's menu, and takes an item of it.
func (b *browser) menu(row, item string) {
	b.t.Helper()
	b.click(row+" .acts button.more", "")
	b.click(row+" [role=menuitem]", item)
}

// press presses keys, one after another.
func (b *browser) press(keys ...string) {
	b.t.Helper()
	for _, k := range keys {
		b.do(chromedp.KeyEvent(k))
	}
}

// tabTo presses Tab until the element with that accessible name has the focus.
func (b *browser) tabTo(name string) {
	b.t.Helper()
	for range 100 {
		var got string
		b.do(chromedp.KeyEvent("\t"), chromedp.Evaluate(`document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent`, &got))
		if got == name {
			return
		}
	}
	b.t.Fatalf("Tab never comes to %q", name)
}

// rollBack confirms the preview that is open, and sees the stages live.
func (b *browser) rollBack(verb string) {
	b.t.Helper()
	b.see("dialog .preview h3", "would be undone")
	b.do(chromedp.Evaluate(`window.seen = new Set();
		new MutationObserver(() => document.querySelectorAll(".stages li").forEach((li) => seen.add(li.dataset.stage + " " + li.className)))
			.observe(document.body, { subtree: true, childList: true, attributes: true }); 0`, nil))
	b.click("dialog .row.end button", verb)
	b.see("dialog h3", "Done, and proven")
	var seen []string
	b.do(chromedp.Evaluate("[...seen]", &seen))
	for _, stage := range ipc.Stages {
		if all := strings.Join(seen, "\n"); !strings.Contains(all, string(stage)+" running") || !strings.Contains(all, string(stage)+" ok") {
			b.t.Errorf("%s was not seen running, then done: %q", stage, seen)
		}
	}
}
