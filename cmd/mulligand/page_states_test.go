package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"mulligan/ipc"
	"mulligan/testkit"
)

// testPageStates sees the page in the states that it can be in, from a daemon without an app on, and compares each with its
// picture.
func testPageStates(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	b := newBrowser(t)
	link := ask[ipc.UILink](d, "ui", "--print")
	b.do(chromedp.Navigate(link.URL))
	b.see("h1", "No app yet")
	b.see(".command button", "Copy")
	b.looksRight("no-app")
	b.isAsPictured("no-app")

	// The page is open while somebody registers an app.
	var slow atomic.Pointer[chan struct{}] // holds up who asks the app once it is back in its first state
	page := filepath.Join(d.dir, "ws", "page.html")
	health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := os.ReadFile(page) // which is not there for a moment
		if gate := slow.Load(); gate != nil && strings.Contains(string(text), "zero") {
			select {
			case <-*gate:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(health.Close)
	a := &testApp{d: d, ws: filepath.Join(d.dir, "ws"), addr: freeAddr(t)}
	if err := os.Mkdir(a.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	a.set(t, "zero")
	// A commit's id depends on the time of the commit, and its first two digits name the folder of .git/objects that the commit is
	// stored in. With the current time, that folder existed already in one run of 37, and the page counted one change less.
	const dated = "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z GIT_COMMITTER_DATE=2026-01-02T03:04:05Z "
	shell(t, a.ws, "git init -q && git add page.html && "+dated+"git commit -qm one")
	d.must("app", "add", "--slug", "shop", "--dir", a.ws, "--db", "sqlite:shop.db",
		"--run", fmt.Sprintf("%s serve-app %s page.html", filepath.Join(bin, "app"), a.addr), "--health", health.URL)
	a.up(t)
	b.see("h2", "No checkpoint yet")
	b.see(".app-head p", "running") // which it was not when the page found it
	b.until("the news of the registration to go", `!document.querySelector("#live").textContent`)
	b.looksRight("empty")
	b.isAsPictured("empty")
	b.click(".view button", "Create checkpoint")
	b.do(chromedp.SendKeys("#notes", "before the migration", chromedp.ByQuery))
	b.click("dialog button", "Create")
	b.see(".entry .note", "before the migration")

	// What git keeps for itself is one line, and a database's changes are a table.
	a.set(t, "broken")
	shell(t, a.ws, "git add page.html && "+dated+"git commit -qm two; rm -r src made-in-*; sqlite3 shop.db 'DELETE FROM words WHERE id > 490; CREATE TABLE bills (total INTEGER)'")
	b.click("button", "What changed since the newest checkpoint")
	b.see("dialog table.db td", "500 → 490")
	b.see("dialog table.db td", "CREATE TABLE bills")
	b.looksRight("changes-folded")
	b.isAsPictured("changes-folded")
	b.click("dialog .repository > summary", "git's own files")
	b.click("dialog .repository details summary", "objects")
	b.see("dialog .repository .item .name", ".git/objects/")

	// Back closes the dialog and nothing else.
	b.do(chromedp.Evaluate("history.back(); 0", nil))
	b.gone("dialog")
	b.see("h1", "shop")

	// Names that are as long as they may get.
	long := strings.Repeat("Wm", 30)
	d.must("create", "--app", "shop", "--notes", long, "--quiesce", "none", "--pin")
	d.must("create", "--app", "shop", "--trigger", "deploy", "--deploy-id", "r42", "--quiesce", "none")
	b.see(".title", "Deploy r42")
	b.see(".note", long)
	b.click(".filters label", "Turns")
	b.see("button", "Show all")
	b.laidOut("none-of-a-kind")
	b.click("button", "Show all")
	b.see(".note", long)
	b.until("what is told of the app to be of this moment", `!document.querySelector(".app-head p").textContent.includes("under way")`) // it is asked for every two seconds
	b.looksRight("three")
	b.isAsPictured("three")
	b.click("#"+string(a.checkpoints()[1].ID)+" button.more", "")
	b.see(".about p", "of its own")
	b.see(".about p", "taken while the app ran")
	b.laidOut("menu")
	b.press("\x1b")
	b.gone("[role=menu]")

	// A rollback that somebody else asked for, while it asks the app how it is.
	d.must("app", "set", "health.timeout=10m", "--app", "shop")
	gate := make(chan struct{})
	slow.Store(&gate)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.must("rollback", "3", "--app", "shop")
	}()
	b.see("#live", "Ask the app how it is")
	b.until("what is told of the app to be of this moment", `/running .* under way/.test(document.querySelector(".app-head p").textContent)`)
	b.looksRight("under-way")
	b.isAsPictured("under-way")
	slow.Store(nil)
	close(gate)
	<-done
	b.until("the end of the rollback to show", `!document.querySelector("#live").textContent`)
	b.see(".cp.pre-rollback .title", "before the migration")
	if got := a.word(t); got != "zero" {
		t.Fatalf("the app is in state %s", got)
	}
	b.innocent(link.URL)
}

// testPageLost stops the daemon's process for a while: the page says so, also above a dialog, and goes on by itself.
func testPageLost(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	newApp(t, d, 5).create()
	b := plainBrowser(t)
	b.do(chromedp.Navigate(ask[ipc.UILink](d, "ui", "--print").URL))
	b.see(".entry button", "Roll back…")
	b.press("c")
	b.see("dialog h2", "Create a checkpoint")

	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.cmd.Process.Signal(syscall.SIGCONT) }) // a test that fails here ends the daemon, which then must run
	b.see("#lost:popover-open", "The daemon does not answer.")
	testkit.Eventually(t, "the banner is above the dialog and its shade", func() bool { return b.hasItsColor("#lost") })
	b.until("the dialog to be open still", `document.querySelector("dialog").matches(":modal")`)
	b.press("\x1b")
	b.gone("dialog")
	b.looksRight("lost")
	b.isAsPictured("lost")

	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.gone("#lost:popover-open")
	b.see("#said", "answers again")
	d.must("create", "--app", "shop", "--notes", "afterwards", "--quiesce", "none")
	b.see(".note", "afterwards") // the live feed is back as well
	d.kill()
	b.see("#lost:popover-open", "mulligan ui")
	d.start() // its orderly end ends the app too
}

// testPageOfThousands shows the first rows of 3,000 checkpoints, and older ones when asked. They are copies, which the browser makes of the
// checkpoint that the daemon has.
func testPageOfThousands(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	newApp(t, d, 5).create()
	b := plainBrowser(t)
	b.runsFirst(thousands)
	b.do(chromedp.Navigate(ask[ipc.UILink](d, "ui", "--print").URL))
	b.see(".cp .note", "note 3000")
	b.until("a page of rows", `document.querySelectorAll(".cp").length === 200`)
	b.looksRight("thousands")
	b.do(chromedp.Evaluate(`document.querySelectorAll(".cp").forEach((row) => { row.kept = true; }); window.asked = []; 0`, nil))
	b.click("button", "Show older")
	b.until("400 rows, of which the first 200 are as they were", `document.querySelectorAll(".cp").length === 400 && [...document.querySelectorAll(".cp")].filter((row) => row.kept).length === 200`)
	b.until("a request for the next 200", `(() => { // and one more, if the newest were being asked for when the button was pressed, as they are when the feed opens
		const older = asked.filter((query) => query.includes("before="));
		return older.length >= 1 && older.length <= 2 && older.every((query) => query.includes("limit=200")); })()`)
	b.until("the first of the new rows to have the focus", `document.activeElement.closest(".cp").textContent.includes("note 2800")`)
	b.press("k")
	b.until("the row before to have the focus", `document.activeElement.closest(".cp").textContent.includes("note 2801")`)

	// Something new changes neither how much is shown nor where the focus is.
	d.must("create", "--app", "shop", "--notes", "another", "--quiesce", "none")
	b.see(".cp .note", "another")
	b.until("400 rows, and the focus where it was", `document.querySelectorAll(".cp").length === 400 && document.activeElement.closest(".cp")?.textContent.includes("note 2801")`)
	b.until("rows that have not changed to stay", `[...document.querySelectorAll(".cp")].filter((row) => row.kept).length >= 198`)

	// Neither does a daemon that did not answer for a while, after which the page is drawn anew.
	lost := func() {
		b.do(chromedp.Evaluate(`document.querySelector(".app-head").old = true; 0`, nil))
		if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		b.see("#lost:popover-open", "The daemon does not answer.")
		if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		b.until("the page to be drawn anew", `document.querySelector(".app-head") && !document.querySelector(".app-head").old`)
	}
	lost()
	b.until("400 rows after that, and the focus where it was", `document.querySelectorAll(".cp").length === 400 && document.activeElement.closest(".cp")?.textContent.includes("note 2801")`)

	// A search finds what is not loaded yet.
	b.do(input.DispatchKeyEvent(input.KeyRawDown).WithKey("/").WithWindowsVirtualKeyCode(191), // as a keyboard does: the page then takes no character for it
		input.DispatchKeyEvent(input.KeyChar).WithKey("/").WithText("/"), input.DispatchKeyEvent(input.KeyUp).WithKey("/"))
	b.until("the search to have the focus", `document.activeElement.id === "search" && document.activeElement.value === ""`)
	b.press("note 17")
	b.until("the words to be there", `document.querySelector("#search").value === "note 17"`)
	b.see(".tools [role=status]", "159 found among 3,001 checkpoints.")
	b.until("a row for each", `document.querySelectorAll(".cp").length === 159 && [...document.querySelectorAll(".cp .note")].every((e) => /^note .*17/.test(e.textContent))`)
	b.looksRight("found")
	lost()
	b.until("the search to go on where it was", `document.activeElement.id === "search" && document.activeElement.value === "note 17" && document.querySelectorAll(".cp").length === 159`)
	search := func(words string) {
		b.do(chromedp.Evaluate(`document.querySelector("#search").select(); 0`, nil), input.InsertText(words))
	}
	search("000000000042")
	b.see(".tools [role=status]", "1 found among 3,001 checkpoints.")
	b.see(".cp .note", "note 42")
	search("nowhere")
	b.see(".tools [role=status]", "None found among 3,001 checkpoints.")
	search("note")
	b.until("a page of what is found", `document.querySelectorAll(".cp").length === 200`)
	b.click("button", "Show older")
	b.until("the next page of what is found", `document.querySelectorAll(".cp").length === 400`)
	b.click(".tabs a", "Storage")
	b.click("summary", "As a table")
	b.until("a row of the table for each", `document.querySelectorAll("tbody tr").length === 3001`)
	b.laidOut("thousands-stored")

	// Its picture has columns, not dashes.
	b.until("at most 120 columns over the whole width, of which most can be told apart", `(() => {
		const columns = [...document.querySelectorAll(".chart rect")].map((r) => r.getBBox());
		return columns.length > 60 && columns.length <= 120 && columns.at(-1).x > 900 && columns.filter((c) => c.height > 10).length > columns.length / 2;
	})()`)
	b.see("figcaption", "Each column is 26 neighbouring checkpoints")
	b.do(chromedp.Evaluate("document.querySelector('details').open = false; 0", nil))
	b.looksRight("thousands-drawn")
}

// testPageLateAnswers holds answers back, so that they come in another order than they were asked for. Where older rows are asked for while
// the page asks for the newest, the focus goes to the first of the older rows, and stays with who has gone elsewhere. What is compared is
// what was chosen last. What was refused can be tried again.
func testPageLateAnswers(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 5)
	a.create()
	b := newBrowser(t)
	b.runsFirst(thousands)
	b.do(chromedp.Navigate(ask[ipc.UILink](d, "ui", "--print").URL))
	b.see(".cp .note", "note 3000")
	for i, step := range []struct{ first, second, next, focus string }{
		{"newest", "older", "note 2800", ""},
		{"older", "newest", "note 2601", ""},
		{"newest", "older", "", "search"},
		{"older", "newest", "", "search"},
	} {
		rows := fmt.Sprintf(`document.querySelectorAll(".cp").length === %d`, 200*(i+2))
		there := fmt.Sprintf(`document.activeElement.closest(".cp")?.textContent.includes(%q)`, step.next)
		if step.focus != "" {
			there = fmt.Sprintf("document.activeElement.id === %q", step.focus)
		}
		b.see("button", "Show older")
		b.do(chromedp.Evaluate(`window.asked = []; window.held = { newest: Promise.withResolvers(), older: Promise.withResolvers() }; 0`, nil))
		note := fmt.Sprintf("made meanwhile %d", i)
		d.must("create", "--app", "shop", "--notes", note, "--quiesce", "none")
		b.until("the newest to be asked for", `asked.some((query) => !query.includes("before="))`)
		b.do(chromedp.Evaluate(matching("button", "Show older")+".focus(); 0", nil))
		b.click("button", "Show older")
		b.until("older ones to be asked for", `asked.some((query) => query.includes("before="))`)
		if step.focus != "" {
			b.do(chromedp.Focus("#" + step.focus))
		}
		b.do(chromedp.Evaluate("held."+step.first+".resolve(); 0", nil))
		b.until("the older rows after the first answer", rows)
		b.until("the focus to be where it belongs after the first answer", there)
		b.do(chromedp.Evaluate("held."+step.second+".resolve(); 0", nil))
		b.see(".cp .note", note)
		b.until("the older rows after both answers", rows)
		b.until("the focus to be where it belongs after both answers", there)
		b.do(chromedp.Evaluate("window.held = undefined; 0", nil))
	}

	a.write(t, "src/new", "one\n")
	row := string(a.checkpoints()[1].ID)
	b.do(chromedp.Evaluate(`(() => {
		const real = window.fetch;
		window.next = Promise.withResolvers();
		window.fetch = async (path, options) => {
			const answer = await real(path, options);
			if (!path.includes("/diff?") || path.includes("against=now")) return answer;
			await next.promise;
			const body = await answer.json();
			return { ok: answer.ok, status: answer.status, json: async () => {
				setTimeout(() => { window.told = true; }); // once the page has made of the answer what it makes of it
				return body;
			} };
		};
	})()`, nil))
	b.menu("#"+row, "What changed")
	b.see("dialog [role=status]", "Comparing")
	b.do(chromedp.Evaluate(`(() => { const to = document.querySelector("#against"); to.value = "now"; to.dispatchEvent(new Event("change")); })()`, nil))
	b.see("dialog [role=status]", "1 change.")
	b.do(chromedp.Evaluate("next.resolve()", nil))
	b.until("the late answer to be there", "window.told")
	b.see("dialog [role=status]", "1 change.")
	b.press("\x1b")
	b.gone("dialog")

	b.menu("#"+row, "Delete…")
	b.see("dialog button", "Delete for good")
	d.must("pin", row, "--app", "shop")
	b.click("dialog button", "Delete for good")
	b.see("dialog [role=alert]", "pinned")
	d.must("unpin", row, "--app", "shop")
	b.click("dialog button", "Delete for good")
	b.gone("#" + row)
}

// thousands answers for the daemon where it is asked for checkpoints: those that it has, and 3,000 older copies of the last. It waits for
// window.held, if the test has set it.
const thousands = `(() => {
	const real = window.fetch;
	window.fetch = async (path, options) => {
		const url = new URL(path, location.href);
		if (!/\/checkpoints$/.test(url.pathname) || options?.method !== "GET" || url.searchParams.get("trigger") === "pre-rollback") return real(path, options);
		window.asked?.push(url.search);
		const answer = await (await real(url.pathname, options)).json();
		answer.storage_usage.checkpoint_count += 2999;
		const last = answer.checkpoints.pop();
		for (let i = 3000; i > 0; i--) answer.checkpoints.push({ ...last, checkpoint_id: "cp-" + String(i).padStart(12, "0"), notes: "note " + i, size_bytes: i % 400 ? (i * 7919 % 5000) : 5e6, created_at: new Date(Date.parse(last.created_at) - (3000 - i) * 3600e3).toISOString() });
		await window.held?.[url.searchParams.has("before") ? "older" : "newest"].promise;
		const from = answer.checkpoints.findIndex((c) => c.checkpoint_id === url.searchParams.get("before")) + 1;
		answer.checkpoints = answer.checkpoints.slice(from, from + (Number(url.searchParams.get("limit")) || 1e9));
		return new Response(JSON.stringify(answer), { headers: { "Content-Type": "application/json" } });
	};
})()`

// testPageAfterRestart kills the daemon and starts another: the page goes on by itself, with what it shows, what it does, and what
// happens, also after it was loaded anew, and in a second tab. It says so if another program has taken its port.
func testPageAfterRestart(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	newApp(t, d, 5)
	b := newBrowser(t)
	link := ask[ipc.UILink](d, "ui", "--print")
	origin := link.URL[:strings.Index(link.URL, "/login")]
	b.do(chromedp.Navigate(link.URL))
	b.see("h2", "No checkpoint yet")
	tab := b.tab()
	tab.do(chromedp.Navigate(origin + "/#/app/shop/protects"))
	tab.see("h2", "Left out")
	b.do(cdpage.BringToFront())
	for _, loadAnew := range []bool{false, true} {
		name := fmt.Sprintf("after a restart (%v)", loadAnew)
		d.kill()
		b.see("#lost:popover-open", "The daemon does not answer.")
		d.start()
		began := time.Now()
		b.gone("#lost:popover-open")
		b.gone(".gone")
		t.Logf("the page goes on %v after the daemon answers", time.Since(began))
		d.must("create", "--app", "shop", "--notes", name, "--quiesce", "none")
		b.see(".cp .note", name)
		if loadAnew {
			b.do(chromedp.Reload())
		}
		b.click(".entry button", "Create checkpoint")
		b.do(chromedp.SendKeys("#notes", "by hand "+name, chromedp.ByQuery))
		b.click("dialog button", "Create")
		b.see(".cp .note", "by hand "+name)
		tab.do(cdpage.BringToFront())
		tab.click(".tabs a", "Timeline")
		tab.see(".cp .note", "by hand "+name)
		tab.click(".tabs a", "Protects")
		b.do(cdpage.BringToFront())
	}

	// A session that ended does not come back with the next daemon.
	cookies := b.cookies()
	tab.do(cdpage.BringToFront(), chromedp.Navigate(origin+"/#/health"))
	tab.click("button", "Log out of this page")
	tab.see("h1", "Nobody is logged in here")
	d.kill()
	d.start()
	if status := get(t, origin+"/api/apps", cookies); status == http.StatusOK {
		t.Error("the session is valid again")
	}

	link = ask[ipc.UILink](d, "ui", "--print")
	b.do(cdpage.BringToFront(), chromedp.Navigate(link.URL))
	b.see("h1", "shop")
	u, err := url.Parse(link.URL)
	if err != nil {
		t.Fatal(err)
	}
	d.kill()
	l, err := net.Listen("tcp", "127.0.0.1:"+u.Port())
	if err != nil {
		t.Fatal(err)
	}
	other := &http.Server{Handler: http.NotFoundHandler()}
	go other.Serve(l)
	t.Cleanup(func() { other.Close() })
	d.start()
	b.see("#lost:popover-open", "Another program has taken the page's port.")
	b.looksRight("port-taken")
}

// tab is another tab of the same browser.
func (b *browser) tab() *browser {
	b.t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	b.t.Cleanup(cancel)
	other := &browser{t: b.t, ctx: ctx, axe: b.axe}
	other.do(chromedp.EmulateViewport(1280, 900))
	return other
}

// cookies are those of the page, as a header.
func (b *browser) cookies() string {
	b.t.Helper()
	var list []string
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		all, err := network.GetCookies().Do(ctx)
		for _, c := range all {
			list = append(list, c.Name+"="+c.Value)
		}
		return err
	}))
	return strings.Join(list, "; ")
}

// get returns the status of a request with cookies; 0 if nobody answers.
func get(t *testing.T, address, cookies string) int {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+u.Port()+u.Path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = u.Host
	req.Header.Set("Cookie", cookies)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}
