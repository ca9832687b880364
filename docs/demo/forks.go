package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"mulligan/ipc"
)

// A typing error in the page: no entry has a Nmae.
const slip = "{{.Nmae}}"

// tried is a repair that the agent tries in a fork.
type tried struct {
	what string
	do   func(ctx context.Context, s *stage, f fork) error
}

// fork is what the agent is told of a fork.
type fork struct {
	Name   string         `json:"name"`
	Folder string         `json:"folder"`
	Ports  []ipc.ForkPort `json:"ports"`
}

// repairs are the agent's ideas. Only the second keeps the guests and shows them.
var repairs = []tried{
	{"leaves the guests out of the page", func(_ context.Context, _ *stage, f fork) error {
		return edit(filepath.Join(f.Folder, "page.html"), slip, "")
	}},
	{"corrects the name in the page, and signs the book to try it", func(ctx context.Context, s *stage, f fork) error {
		if err := edit(filepath.Join(f.Folder, "page.html"), slip, "{{.Name}}"); err != nil {
			return err
		}
		return s.signAt(ctx, "http://"+f.Ports[0].Address, "Barbara", "Boston", "It substitutes well")
	}},
	{"changes the style sheet", func(_ context.Context, _ *stage, f fork) error {
		return put(filepath.Join(f.Folder, "static/style.css"), "body { color: red }\n", 0o644)
	}},
}

// tryForks has the agent break the app once more, try its repairs in forks at the same time, and keep the one that works.
func tryForks(ctx context.Context, s *stage, a *agent) error {
	fmt.Println("   it edits page.html, with a slip of the pen")
	if err := edit(filepath.Join(s.workspace, "page.html"), "{{.Name}}", slip); err != nil {
		return err
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	broken, err := writeDown(ctx, s)
	if err != nil {
		return err
	}
	var made struct{ Forks []fork }
	if err := a.call(ctx, "fork_app", map[string]any{"count": len(repairs)}, &made); err != nil {
		if strings.Contains(err.Error(), "namespaces") {
			fmt.Println("   (left out: this kernel does not let you make the namespaces that forks run in:", err.Error()+")")
			return nil
		}
		return err
	}
	if len(made.Forks) != len(repairs) {
		return fmt.Errorf("there are %d forks", len(made.Forks))
	}
	for i, f := range made.Forks {
		fmt.Printf("   ← fork %s in %s answers at %s: it %s\n", f.Name, f.Folder, f.Ports[0].Address, repairs[i].what)
		if err := repairs[i].do(ctx, s, f); err != nil {
			return err
		}
	}
	best, err := choose(ctx, s, a)
	if err != nil {
		return err
	}
	if now, err := writeDown(ctx, s); err != nil {
		return err
	} else if d := now.differences(broken); len(d) > 0 {
		return fmt.Errorf("the forks changed the app: %s", strings.Join(d, "; "))
	}
	fmt.Println("   compared, the app itself: not a byte or a row has changed")
	return keep(ctx, s, a, best, made.Forks)
}

// choose has the forks compared, and returns the name of the only one whose page shows all guests.
func choose(ctx context.Context, s *stage, a *agent) (best string, err error) {
	var res ipc.Comparison
	check := fmt.Sprintf("%s check %d 4", s.guestbook(), s.port)
	if err := a.call(ctx, "compare_forks", map[string]any{"command": check}, &res); err != nil {
		return "", err
	}
	for _, f := range res.Forks {
		fmt.Printf("   ← fork %s: healthy %v, %d changes, the check ends with %d: %s\n",
			f.Name, f.Healthy != nil && *f.Healthy, f.Created+f.Modified+f.Deleted, f.Command.ExitCode, strings.TrimSpace(f.Command.Output))
		if f.Healthy != nil && *f.Healthy && f.Command.ExitCode == 0 {
			best += f.Name
		}
	}
	if best != res.Forks[1].Name {
		return "", fmt.Errorf("the best fork is %q", best)
	}
	return best, nil
}

// keep takes the app to a fork, and drops the others.
func keep(ctx context.Context, s *stage, a *agent, best string, forks []fork) error {
	var r ipc.RollbackResult
	if err := a.call(ctx, "keep_fork", map[string]any{"name": best}, &r); err != nil {
		return err
	}
	if !r.RolledBack || r.Verification == nil || !r.Verification.Match {
		return fmt.Errorf("the receipt of keep_fork: %+v", r)
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	page, err := s.visit(ctx)
	if err != nil || !strings.HasPrefix(page, "200") || !strings.Contains(page, "Barbara") || !strings.Contains(page, "Ada") {
		return errors.Join(fmt.Errorf("the page is not the fork's: %q", page), err)
	}
	for _, f := range forks {
		if f.Name != best {
			if err := a.call(ctx, "drop_fork", map[string]any{"name": f.Name}, &struct{}{}); err != nil {
				return err
			}
		}
		if _, err := os.Stat(f.Folder); !os.IsNotExist(err) {
			return fmt.Errorf("the folder of fork %s is left: %w", f.Name, err)
		}
	}
	fmt.Println("   compared: the app has the fork's page and its new guest, and nothing of the forks is left")
	return nil
}

// edit replaces a text in a file.
func edit(path, old, text string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !strings.Contains(string(b), old) {
		return fmt.Errorf("%s has no %s", path, old)
	}
	return put(path, strings.ReplaceAll(string(b), old, text), 0o644)
}
