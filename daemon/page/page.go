// Package page is mulligan's web page: plain HTML, CSS and JavaScript modules,
// embedded and served as they are. It talks to the daemon through the API
// alone and asks no other host for anything.
//
// What comes from an app (file names, notes, diffs) is hostile. The page puts it
// into the document as text and never as markup, and its content security
// policy would run nothing of it even so.
package page

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed static
var embedded embed.FS

// policy lets the page load its own files and call its own origin; nothing
// inline runs, nobody frames it (CSP level 3).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page's files; its root is the page. Mount it with the
// prefix stripped.
func Handler() http.Handler {
	files, err := fs.Sub(embedded, "static")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	serve := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		// The files change with the program: asking again is cheap, a stale page isn't.
		h.Set("Cache-Control", "no-cache")
		serve.ServeHTTP(w, r)
	})
}
