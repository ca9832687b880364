package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mulligan/appfile"
	"mulligan/cmd/mulligan/values"
	"mulligan/ipc"
)

func newApp(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "app",
		Short:   "Register, look at and change apps",
		Example: "  mulligan app list\n  mulligan app add --slug shop --dir /srv/shop --db sqlite:shop.db",
	}
	cmd.AddCommand(newAppAdd(c), newAppList(c), newAppShow(c), newAppRemove(c), newAppSet(c))
	return group(cmd)
}

// printApp prints the one app that a command made, changed or shows.
func (c *cli) printApp(a ipc.App) error {
	if c.json {
		return c.printJSON(a)
	}
	c.fields(c.appFields(a))
	return nil
}

const appFieldsHelp = `In a pipe: a line per field, its name (as in the app file) and its value; database,
exclude, covers, gap (what of it cannot be captured or given back), note (what the command changed elsewhere) and problem once per item. Passwords in URLs are not shown, except by --json.`

func (c *cli) appFields(a ipc.App) [][2]string {
	all := [][2]string{
		{"app_id", c.text(string(a.ID))},
		{"slug", c.text(a.Slug)},
		{"owner", c.text(a.Owner)},
		{"workspace", c.text(a.Workspace)},
		{"state", c.text(a.State)},
		{"busy", c.text(a.Busy)},
		{"unit", c.text(a.Unit)},
		{"run", c.text(values.JoinWords(a.Run))},
		{"domain", c.text(a.Domain)},
		{"uri", c.text(a.URI)},
		{"shutdown", c.text(a.Shutdown)},
		{"auto", yesNo(a.Auto)},
	}
	add := func(name string, values ...string) {
		for _, v := range values {
			all = append(all, [2]string{name, c.text(v)})
		}
	}
	add("exclude", a.Exclude...)
	if h := a.Health; h != nil {
		add("health.url", h.URL)
		add("health.command", values.JoinWords(h.Command))
		add("health.timeout", h.Timeout)
	}
	for _, db := range a.Databases {
		add("database", strings.Join(nonEmpty(db.Name, db.Driver, appfile.Redact(db), db.Mode, db.DataDir, db.Unit), " "))
	}
	r := a.Retention
	all = append(all,
		[2]string{"retention.keep_last", strconv.Itoa(r.KeepLast)},
		[2]string{"retention.daily_days", strconv.Itoa(r.DailyDays)},
		[2]string{"retention.keep_turns", strconv.Itoa(r.KeepTurns)},
		[2]string{"retention.keep_safety", strconv.Itoa(r.KeepSafety)},
		[2]string{"retention.max_bytes", c.size(r.MaxBytes)},
		[2]string{"retention.expire_after", c.text(r.ExpireAfter)},
		[2]string{"created_at", c.when(a.CreatedAt)},
	)
	add("covers", a.Covers...)
	for _, g := range a.Gaps {
		add("gap", gapWords(g))
	}
	add("note", a.Notes...)
	add("problem", a.Problems...)
	return all
}

// gapWords is a gap in one line.
func gapWords(g ipc.Gap) string { return g.Layer + ": " + g.What + " What to do: " + g.Remedy + "." }

func nonEmpty(words ...string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return w == "" })
}
