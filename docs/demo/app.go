package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

const (
	appSlug  = "guestbook"
	database = "guestbook.db"
)

const design = `<!doctype html>
<html>
<head><title>Guestbook</title><link rel="stylesheet" href="static/style.css"></head>
<body>
<h1>Our guestbook, version {{.Version}}</h1>
{{range .Entries}}<p>“{{.Message}}” — {{.Name}}, {{.Town}}</p>
{{end}}<form method="post" action="sign">…</form>
</body>
</html>
`

// build makes the app's workspace: what a small project holds, with things that
// git doesn't keep (an ignored file, an empty folder, a mode).
func (s *stage) build(ctx context.Context) error {
	program, err := os.ReadFile(filepath.Join(s.bin, "demo/guestbook"))
	if err != nil {
		return err
	}
	if err := put(s.guestbook(), string(program), 0o755); err != nil {
		return err
	}
	for _, f := range []struct {
		name, text string
		mode       os.FileMode
	}{
		{"page.html", design, 0o644},
		{"version.txt", "1.0\n", 0o644},
		{"static/style.css", "body { font-family: serif }\n", 0o644},
		{"tools/backup", "#!/bin/sh\necho backup\n", 0o755},
		{".gitignore", ".env\nguestbook.db*\n", 0o644},
		{".env", "GREETING=welcome\n", 0o600},
	} {
		if err := put(filepath.Join(s.workspace, f.name), f.text, f.mode); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(s.workspace, "uploads"), 0o750); err != nil {
		return err
	}
	if err := os.Symlink("static/style.css", filepath.Join(s.workspace, "style.css")); err != nil {
		return err
	}
	return s.commands(ctx, []string{"init", "-q", "-b", "main"}, []string{"add", "."}, []string{"commit", "-q", "-m", "A guestbook"})
}

// commands runs git with each of the argument lists.
func (s *stage) commands(ctx context.Context, lists ...[]string) error {
	for _, args := range lists {
		if _, err := s.git(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func put(path, text string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), mode)
}

// register tells mulligan of the app, and waits until it serves.
func (s *stage) register(ctx context.Context) error {
	args := []string{
		"app", "add", "--slug", appSlug, "--dir", s.workspace,
		"--run", fmt.Sprintf("/usr/bin/env PORT=%d '%s'", s.port, s.guestbook()),
		"--health", s.url("/healthz"), "--db", "sqlite:" + database, "--json",
	}
	fmt.Printf("   $ mulligan %s\n", quoted(args))
	if _, err := s.mulligan(ctx, args...); err != nil {
		return err
	}
	return s.waitFor(ctx, "the guestbook to open", func() error {
		_, err := s.visit(ctx)
		return err
	})
}
