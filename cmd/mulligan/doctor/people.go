package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"mulligan/agents"
	"mulligan/errs"
	"mulligan/ipc"
)

// agents checks each coding agent that is on this machine.
func (e *exam) agents(ctx context.Context) {
	found := 0
	for _, a := range agents.All() {
		if len(e.Places) == 0 || !a.Found(e.Places[0]) {
			continue
		}
		found++
		e.agent(ctx, a)
	}
	if found == 0 {
		e.add("agents", "agents", OK, "mulligan found no agent that it knows; any agent can use `mulligan mcp` as its server", "")
	}
	e.hookLog()
}

// agent checks that an agent is set up, in the user's settings or in the
// project's, and asks it whether it runs the hooks.
func (e *exam) agent(ctx context.Context, a *agents.Agent) {
	var inOrder []string
	for _, p := range e.Places {
		remedy := "mulligan install " + a.Name
		if p.Scope == agents.Project {
			remedy += " --scope project"
		}
		how, files, err := a.Condition(p, e.Backups)
		switch {
		case err != nil:
			e.add("agents", a.Name, Problem, plain(err), errs.HintOf(err))
			return
		case how == agents.Partly:
			e.add("agents", a.Name, Problem, "mulligan's part is not as this version writes it, in "+strings.Join(files, ", "), remedy)
			return
		case how == agents.Complete:
			inOrder = append(inOrder, string(p.Scope))
		}
	}
	if len(inOrder) == 0 {
		e.add("agents", a.Name, Advice, a.Title+" is here, without mulligan's hooks and server", "mulligan install "+a.Name)
		return
	}
	if e.Dir != "" {
		problem, remedy, err := a.Ask(ctx, e.Dir)
		switch {
		case err != nil:
			e.add("agents", a.Name, Advice, "its settings are in order, but it could not be asked whether it runs the hooks: "+plain(err), "")
			return
		case problem != "":
			e.add("agents", a.Name, Problem, problem, remedy)
			return
		}
	}
	e.add("agents", a.Name, OK, "hooks and server are in order, in the settings of the "+strings.Join(inOrder, " and the "), "")
}

// hookLog reports the errors that hooks logged in the last day.
func (e *exam) hookLog() {
	const recent = 24 * time.Hour
	text, err := os.ReadFile(e.HookLog)
	if err != nil {
		return
	}
	n, last := 0, ""
	for line := range strings.Lines(string(text)) {
		at, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		when, err := time.Parse(time.RFC3339, at)
		// Agents also work in folders that belong to no app.
		if err == nil && time.Since(when) < recent && !strings.Contains(rest, ": find the app: ") {
			n, last = n+1, rest
		}
	}
	switch {
	case n == 1:
		e.add("agents", "hooks", Advice, "one complained in the last day: "+last, "see "+e.HookLog)
	case n > 1:
		e.add("agents", "hooks", Advice, fmt.Sprintf("they complained %d times in the last day, last: %s", n, last), "see "+e.HookLog)
	}
}

// appList checks each app.
func (e *exam) appList(ctx context.Context) {
	for _, a := range e.apps {
		e.app(a)
		e.gaps(ctx, a)
	}
	if len(e.apps) == 0 && e.report.NoDaemon == nil {
		e.add("apps", "apps", Advice, "there are none yet", "mulligan init, in an app's folder")
	}
}

func (e *exam) app(a ipc.App) {
	for _, p := range a.Problems {
		e.add("apps", a.Slug, Problem, p, "see `mulligan app show "+a.Slug+"`")
	}
	if a.State == "failed" {
		e.add("apps", a.Slug, Problem, "it has failed", unitRemedy(a))
	}
	if a.Following == "degraded" && len(a.Problems) == 0 {
		e.add("apps", a.Slug, Problem, "its files are not followed: automatic checkpoints may come late", "see `mulligan app show "+a.Slug+"`")
	}
	if len(a.Problems) > 0 || a.State == "failed" || a.Following == "degraded" {
		return
	}
	words := []string{a.Workspace}
	if a.State != "" && a.State != "none" {
		words = append(words, a.State)
	}
	if a.Busy != "" {
		words = append(words, "busy with "+a.Busy)
	}
	if a.Following != "" {
		words = append(words, "files: "+a.Following)
	}
	if len(a.Covers) > 0 {
		words = append(words, "covers "+strings.Join(a.Covers, ", "))
	}
	e.add("apps", a.Slug, OK, strings.Join(words, "; "), "")
}

// gapsTimeout bounds how long the daemon looks for an app's gaps.
const gapsTimeout = time.Minute

// gaps reports what of an app cannot be captured or restored. It adds nothing for an app without gaps.
func (e *exam) gaps(ctx context.Context, a ipc.App) {
	short, cancel := context.WithTimeout(ctx, gapsTimeout)
	defer cancel()
	full, err := e.Daemon.AppWithGaps(short, string(a.ID))
	if err != nil {
		e.add("apps", a.Slug, Advice, "mulligan could not check which of its parts cannot be captured: "+plain(err), "see `mulligan app show "+a.Slug+"`")
		return
	}
	for _, g := range full.Gaps {
		e.add("apps", a.Slug+"'s "+g.Layer, needed(g.Blocks), g.What, g.Remedy)
	}
}

func unitRemedy(a ipc.App) string {
	if a.Engine != "" {
		return "see `docker ps -a` and `docker logs`; mulligan rollback 1 takes it back"
	}
	if a.Unit != "" {
		return "see `systemctl status " + a.Unit + "`; mulligan rollback 1 takes it back"
	}
	return "see the daemon's log; mulligan rollback 1 takes it back"
}
