package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"

	"mulligan/ipc"
	"mulligan/testkit"
)

// quietApp registers an app that never runs, with a database and a git repository, whose turns are kept.
func quietApp(t *testing.T, d *daemonProcess) *testApp {
	t.Helper()
	testkit.Need(t, "git", "sqlite3")
	a := &testApp{d: d, ws: filepath.Join(d.dir, "ws")}
	if err := os.Mkdir(a.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	a.write(t, "src/shop.go", "package shop\n")
	shell(t, a.ws, "git init -q -b main && git add src && git commit -qm one; sqlite3 shop.db 'CREATE TABLE words (word TEXT)'")
	d.must("app", "add", "--slug", "shop", "--dir", a.ws, "--db", "sqlite:shop.db")
	d.must("app", "set", "--app", "shop", "auto=true")
	eventually(t, "the files are followed", func() bool {
		app, err := d.client.App(t.Context(), "shop")
		return err == nil && app.Following == "watching"
	})
	return a
}

// turn has an agent work, and returns its turn.
func (a *testApp) turn(t *testing.T, title, script string) ipc.Turn {
	t.Helper()
	var turn ipc.Turn
	eventually(t, "a turn begins that has no warning", func() bool { // the daemon has a quarter of a second to see what was written before
		var err error
		if turn, err = a.d.client.BeginTurn(t.Context(), "shop", ipc.BeginTurn{Agent: "claude-code", ConversationID: "c", Title: title}); err == nil && len(turn.Warnings) > 0 {
			_, err = a.d.client.EndTurn(t.Context(), "shop", turn.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		return len(turn.Warnings) == 0
	})
	if _, err := a.d.client.BeginCall(t.Context(), "shop", turn.ID, ipc.BeginCall{Tool: "Bash", Before: true, DeadlineMS: 10_000}); err != nil {
		t.Fatal(err)
	}
	shell(t, a.ws, script)
	turn, err := a.d.client.EndTurn(t.Context(), "shop", turn.ID)
	if err != nil || turn.CheckpointID == nil {
		t.Fatalf("%+v, %v", turn, err)
	}
	return turn
}

// testPageTurns sees what turns changed: of files, of git's own files, and of databases, as `mulligan turns` says it.
func testPageTurns(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := quietApp(t, d)
	both := a.turn(t, "add prices", "echo x >src/prices.go; git add . ; git commit -qm two")
	rows := a.turn(t, "fill the words", `sqlite3 shop.db "INSERT INTO words VALUES ('a'), ('b'), ('c')"`)
	form := a.turn(t, "bills", `sqlite3 shop.db "CREATE TABLE bills (total INTEGER)"`)
	b := newBrowser(t)
	link := ask[ipc.UILink](d, "ui", "--print")
	b.do(chromedp.Navigate(link.URL))
	row := func(turn ipc.Turn) string { return "#" + string(*turn.CheckpointID) + " .text" }
	if !slices.Contains(both.Changes.Paths, ".git") {
		t.Fatalf("git wrote nothing: %+v", both.Changes)
	}
	b.see(row(both)+" .plus", "+1 ")
	b.see(row(both)+" .tilde", "~1 ") // the repository
	b.see(row(both), "src/prices.go, git's own files")
	b.see(row(rows), "database shop: words 3 rows")
	b.see(row(form), "database shop: bills CREATE TABLE bills")
	b.until("nothing of files in the rows of databases", fmt.Sprintf("!document.querySelector(%q)", row(rows)+" .plus"))
	b.looksRight("turns")
	b.isAsPictured("turns")
	b.innocent(link.URL)
}

// testPageNames rolls back to a turn, and forward again: everywhere the page calls checkpoints by what people call them. Of an app that
// never runs, it does not say whether it ran.
func testPageNames(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := quietApp(t, d)
	turn := a.turn(t, "add prices", "echo '// prices' >>src/shop.go")
	target := string(*turn.CheckpointID)
	d.must("rollback", target, "--app", "shop")
	forward := string(a.checkpoints()[0].ID)
	d.must("rollback", forward, "--app", "shop")
	b := newBrowser(t)
	link := ask[ipc.UILink](d, "ui", "--print")
	b.do(chromedp.Navigate(link.URL))
	b.see(".cp.pre-rollback .title", "safety checkpoint before rollback to “add prices”")
	b.see(".cp.pre-rollback .title", "safety checkpoint before rollback to the state before the rollback to “add prices”")
	const noIDs = `!/cp-[0-9a-f]/.test(document.querySelector("dialog, main").innerText)`
	b.until("no id on the timeline", noIDs)
	b.see(".app-head p", "every turn is kept")
	b.until("nothing of a unit", `!document.querySelector(".app-head p").textContent.includes("unit")`)
	b.click("#"+target+" button.more", "")
	b.see(".about p", "of its own")
	b.until("nothing of the app's running", `!document.querySelector(".about").textContent.includes("ran")`)
	b.press("\x1b")
	b.looksRight("names")
	b.isAsPictured("names")

	b.click("#"+forward+" .main-action", "")
	b.see("dialog p", "before rollback to “add prices”")
	b.until("no id in the preview", noIDs)
	b.press("\x1b")
	b.gone("dialog")
	b.click(".filters label", "Safety")
	b.gone(".cp.agent")
	b.until("no id among safety checkpoints", noIDs)
	b.click(".tabs a", "Storage")
	b.click("summary", "As a table")
	b.see("tbody th", "add prices")
	b.until("no id in the table", noIDs)
	b.click(".tabs a", "Audit")
	b.see("td", "“add prices”")
	b.innocent(link.URL)

	// The checkpoint that is gone back to need not be on the page.
	d.must("delete", target, "--app", "shop")
	b.do(chromedp.Reload())
	b.click(".tabs a", "Timeline")
	b.see(".cp.pre-rollback .title", "safety checkpoint before rollback to "+target)
}
