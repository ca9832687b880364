package main

import (
	"bytes"
	_ "embed"
	"flag"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// widths are those of a small phone, a tablet and a desktop, in CSS pixels.
var widths = []int64{320, 768, 1280}

// looksRight checks the view by axe's rules in both palettes, and its layout. MULLIGAN_SCREENSHOTS names a folder for pictures of it.
func (b *browser) looksRight(view string) {
	b.t.Helper()
	for _, scheme := range []string{"dark", "light"} {
		b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
			chromedp.Evaluate(b.axe+";0", nil))
		b.finds(view+", "+scheme, `axe.run({resultTypes: ["violations"]}).then((r) => r.violations.filter((v) => ["serious", "critical"].includes(v.impact))
			.flatMap((v) => v.nodes.map((n) => v.id + ": " + n.target + ": " + n.failureSummary)))`)
		if os.Getenv("MULLIGAN_SCREENSHOTS") != "" {
			b.laidOut(view + "-" + scheme)
		}
	}
	b.laidOut(view)
}

// laidOut checks the layout in three widths: nothing is wider than the window, what can be clicked is large enough and covers nothing else, and a
// row has one main action.
func (b *browser) laidOut(view string) {
	b.t.Helper()
	for _, width := range widths {
		b.do(chromedp.EmulateViewport(width, 900))
		b.finds(fmt.Sprintf("%s at %d", view, width), layoutFaults)
		if dir := os.Getenv("MULLIGAN_SCREENSHOTS"); dir != "" {
			var picture []byte
			b.do(chromedp.CaptureScreenshot(&picture))
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.png", view, width)), picture, 0o644); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

// hasItsColor reports whether the element is drawn in its background color near its left edge. If something is above it, even the shade of a
// dialog, it is not.
func (b *browser) hasItsColor(selector string) bool {
	b.t.Helper()
	var at struct {
		X, Y  int
		Color string
	}
	var picture []byte
	b.do(chromedp.Evaluate(fmt.Sprintf(`(() => { const e = document.querySelector(%q), r = e.getBoundingClientRect();
		return { X: Math.round(r.left + 6), Y: Math.round(r.top + r.height / 2), Color: getComputedStyle(e).backgroundColor }; })()`, selector), &at),
		chromedp.CaptureScreenshot(&picture))
	drawn, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		b.t.Fatal(err)
	}
	red, green, blue, _ := drawn.At(at.X, at.Y).RGBA()
	return fmt.Sprintf("rgb(%d, %d, %d)", red>>8, green>>8, blue>>8) == at.Color
}

// finds evaluates an expression for a list of faults.
func (b *browser) finds(where, expression string) {
	b.t.Helper()
	var faults []string
	b.do(chromedp.Evaluate(expression, &faults, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	for _, f := range faults {
		b.t.Errorf("%s: %s", where, f)
	}
}

// layoutFaults is a script that measures the boxes of the page as they are drawn.
//
//go:embed testdata/page/layout.js
var layoutFaults string

// pictureOf is a script that describes what is drawn: the texts of the page in their order, and where the buttons of rows are.
//
//go:embed testdata/page/picture.js
var pictureOf string

var updatePictures = flag.Bool("update-pictures", false, "write what the page looks like to testdata/page")

// varying is what no two runs have in common, with a name for it.
var varying = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`cp-[0-9a-f]{12,}`), "cp-ID"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`by \S+ \(pid \d+`), "by USER (pid N"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "MOMENT"},
	{regexp.MustCompile(`(/[\w.-]+)*/(ws|forks\d+)\b`), "FOLDER"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d[\s\x{202f}]?[AP]M`), "TIME"},
	{regexp.MustCompile(`\d+(\.\d+)? m?s\b`), "DURATION"},
	{regexp.MustCompile(`git's own files: \d+`), "git's own files: N"}, // it depends on git's version
	{regexp.MustCompile(`[0-9a-f]{10,40}\b`), "HASH"},
	{regexp.MustCompile(`\d+(\.\d+)? [KM]?i?B\b`), "SIZE"},
}

// isAsPictured compares what is drawn, on a phone and on a desktop, with the picture of that name in testdata/page. It is of text, so that fonts do
// not matter.
func (b *browser) isAsPictured(name string) {
	b.t.Helper()
	var all strings.Builder
	for _, width := range []int64{widths[0], widths[len(widths)-1]} {
		var lines []string
		b.do(chromedp.EmulateViewport(width, 900), chromedp.Evaluate(pictureOf, &lines))
		text := strings.Join(lines, "\n")
		for _, v := range varying {
			text = v.pattern.ReplaceAllString(text, v.name)
		}
		fmt.Fprintf(&all, "== %d wide\n%s\n", width, text)
	}
	path := filepath.Join("testdata", "page", name+".txt")
	if *updatePictures {
		if err := os.WriteFile(path, []byte(all.String()), 0o644); err != nil {
			b.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	if got := all.String(); got != string(want) {
		b.t.Errorf("the page is not as in %s (-update-pictures writes it anew, if it is better now):\n%s\nwas\n%s", path, got, want)
	}
}
