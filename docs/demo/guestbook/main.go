// Command guestbook is the app that mulligan's demo breaks: a page that shows
// what guests wrote, and a form to write. Its design (page.html, version.txt)
// and its data (guestbook.db) are in the folder that it is started in. It
// listens on the loopback address, at PORT.
//
// "guestbook check PORT N" is a test of the app: it fails unless the page at PORT shows N entries.
package main

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	do := run
	if len(os.Args) == 4 && os.Args[1] == "check" {
		do = func() error { return check(os.Args[2], os.Args[3]) }
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "guestbook:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	b, err := openBook(ctx, "guestbook.db")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", os.Getenv("PORT")))
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: handler(b), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		srv.Close()
	}()
	fmt.Println("guestbook: open at http://" + l.Addr().String())
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// check visits the page and counts its entries.
func check(port, want string) error {
	resp, err := http.Get("http://" + net.JoinHostPort("127.0.0.1", port) + "/")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if n := strings.Count(string(body), "“"); resp.StatusCode != http.StatusOK || strconv.Itoa(n) != want {
		return fmt.Errorf("the page has %d entries: %s", n, resp.Status)
	}
	fmt.Println("the page has", want, "entries")
	return nil
}

func handler(b *book) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { show(w, r, b) })
	mux.HandleFunc("POST /sign", func(w http.ResponseWriter, r *http.Request) { sign(w, r, b) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := b.ping(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// page is what the design is filled with.
type page struct {
	Version string
	Entries []entry
}

func show(w http.ResponseWriter, r *http.Request, b *book) {
	html, err := render(r.Context(), b)
	if err != nil {
		http.Error(w, "500: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, html)
}

// render reads the design anew each time, so that an edit shows at once.
func render(ctx context.Context, b *book) (string, error) {
	design, err := template.ParseFiles("page.html")
	if err != nil {
		return "", err
	}
	version, err := os.ReadFile("version.txt")
	if err != nil {
		return "", err
	}
	entries, err := b.entries(ctx)
	if err != nil {
		return "", err
	}
	var html strings.Builder
	err = design.Execute(&html, page{strings.TrimSpace(string(version)), entries})
	return html.String(), err
}

func sign(w http.ResponseWriter, r *http.Request, b *book) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	name, town, message := r.PostFormValue("name"), r.PostFormValue("town"), r.PostFormValue("message")
	if name == "" || message == "" {
		http.Error(w, "a name and a message are needed", http.StatusBadRequest)
		return
	}
	if err := b.sign(r.Context(), name, town, message); err != nil {
		http.Error(w, "500: "+err.Error(), http.StatusInternalServerError)
		return
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}
