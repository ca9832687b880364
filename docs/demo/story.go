package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// play plays the story, in seven scenes.
func play(ctx context.Context, s *stage) error {
	scene("1. An app, and a daemon that looks after it")
	if err := opening(ctx, s); err != nil {
		return err
	}
	a, err := newAgent(ctx, s)
	if err != nil {
		return err
	}
	defer a.session.Close() // its process ends with its input

	scene("2. An agent makes a checkpoint before it begins")
	good, err := a.create(ctx, "before the redesign")
	if err != nil {
		return err
	}
	working, err := writeDown(ctx, s)
	if err != nil {
		return err
	}
	fmt.Printf("   written down to compare with: commit %.12s, %d files and folders, %d tables\n", working.code, len(working.files), len(working.rows))

	scene("3. The agent breaks it: code, files and data")
	if err := wreck(ctx, s); err != nil {
		return err
	}
	broken, err := writeDown(ctx, s)
	if err != nil {
		return err
	}
	if d := broken.differences(working); len(d) < 8 {
		return fmt.Errorf("the app should be broken, and only this is different: %s", strings.Join(d, "; "))
	}

	scene("4. Back to the checkpoint")
	failure, err := a.rollback(ctx, good.ID, "the redesign lost the guests")
	if err != nil {
		return err
	}
	if err := expect(ctx, s, working, "as it was at the checkpoint"); err != nil {
		return err
	}

	scene("5. Forward into the failure, to look at it")
	if _, err := a.rollback(ctx, failure, "what went wrong?"); err != nil {
		return err
	}
	if err := expect(ctx, s, broken, "as broken as it was"); err != nil {
		return err
	}

	scene("6. And back again")
	if _, err := a.rollback(ctx, good.ID, "seen enough"); err != nil {
		return err
	}
	if err := expect(ctx, s, working, "as it was at the checkpoint"); err != nil {
		return err
	}

	scene("7. Broken once more: three repairs side by side, and one is kept")
	return tryForks(ctx, s, a)
}

func scene(title string) { fmt.Printf("\n── %s\n", title) }

// opening builds the app, starts the daemon, registers the app and has guests sign.
func opening(ctx context.Context, s *stage) error {
	fmt.Println("   workspace", s.workspace)
	if err := s.build(ctx); err != nil {
		return err
	}
	if err := s.startDaemon(ctx); err != nil {
		return err
	}
	if err := s.register(ctx); err != nil {
		return err
	}
	for _, e := range [][3]string{
		{"Ada", "London", "What a lovely place"},
		{"Grace", "New York", "Found a moth, otherwise perfect"},
		{"Edsger", "Nuenen", "Simple and elegant"},
	} {
		if err := s.sign(ctx, e[0], e[1], e[2]); err != nil {
			return err
		}
	}
	return s.look(ctx)
}

// wreck does what agents have been seen doing.
func wreck(ctx context.Context, s *stage) error {
	in := func(name string) string { return filepath.Join(s.workspace, name) }
	fmt.Println("   it edits page.html and version.txt, deletes static/style.css, adds notes/plan.md, and commits")
	redesign := strings.Replace(design, "Our guestbook", "GUESTBOOK PRO", 1)
	err := errors.Join(
		put(in("page.html"), redesign, 0o644), put(in("version.txt"), "2.0-beta\n", 0o644),
		os.Remove(in("static/style.css")), put(in("notes/plan.md"), "1. make it pop\n", 0o644),
	)
	if err != nil {
		return err
	}
	if err := s.commands(ctx, []string{"add", "-A"}, []string{"commit", "-q", "-m", "Redesign"}); err != nil {
		return err
	}
	fmt.Println("   it overwrites .env (which git ignores), takes a mode away, and removes the empty uploads/")
	err = errors.Join(put(in(".env"), "GREETING=\n", 0o600), os.Chmod(in("tools/backup"), 0o644), os.Remove(in("uploads")))
	if err != nil {
		return err
	}
	if err := s.sql(ctx, "UPDATE entries SET message = 'Lorem ipsum'"); err != nil {
		return err
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	if err := s.sql(ctx, "PRAGMA foreign_keys = OFF; DROP TABLE guests"); err != nil {
		return err
	}
	return s.look(ctx)
}

// sql runs a statement on the app's database, beside the app.
func (s *stage) sql(ctx context.Context, statement string) (err error) {
	fmt.Printf("   sqlite> %s;\n", statement)
	db, err := openDatabase(filepath.Join(s.workspace, database), "rw")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = db.ExecContext(ctx, statement)
	return err
}

// expect looks at the app and compares all of it with what was written down.
func expect(ctx context.Context, s *stage, want record, like string) error {
	if err := s.look(ctx); err != nil {
		return err
	}
	got, err := writeDown(ctx, s)
	if err != nil {
		return err
	}
	if d := got.differences(want); len(d) > 0 {
		return fmt.Errorf("the app is not %s; %d things differ:\n   %s", like, len(d), strings.Join(d[:min(len(d), 12)], "\n   "))
	}
	fmt.Printf("   compared, %s: commit %.12s, %d files and folders (type, mode, size, mtime, content), %d tables row by row, the page\n",
		like, got.code, len(got.files), len(got.rows))
	return nil
}

// quoted is a command line as one would type it.
func quoted(args []string) string {
	var words []string
	for _, a := range args {
		if strings.ContainsAny(a, " '") {
			a = `"` + a + `"`
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}
