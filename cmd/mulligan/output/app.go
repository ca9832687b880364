package output

import (
	"slices"
	"strconv"
	"strings"

	"mulligan/appfile"
	"mulligan/cmd/mulligan/values"
	"mulligan/ipc"
)

// PrintApp prints the app that a command added, changed or shows.
func (p *Printer) PrintApp(a ipc.App) error {
	if p.JSON {
		return p.PrintJSON(a)
	}
	p.Fields(p.AppFields(a))
	return nil
}

// AppFields returns the fields of an app, for Fields.
func (p *Printer) AppFields(a ipc.App) [][2]string {
	all := [][2]string{
		{"app_id", p.Text(string(a.ID))},
		{"slug", p.Text(a.Slug)},
		{"owner", p.Text(a.Owner)},
		{"workspace", p.Text(a.Workspace)},
		{"state", p.Text(a.State)},
		{"busy", p.Text(a.Busy)},
		{"unit", p.Text(a.Unit)},
		{"engine", p.Text(a.Engine)},
		{"run", p.Text(values.JoinWords(a.Run))},
		{"domain", p.Text(a.Domain)},
		{"uri", p.Text(a.URI)},
		{"shutdown", p.Text(a.Shutdown)},
		{"auto", YesNo(a.Auto)},
		{"follow", YesNo(a.Auto || a.Follow == nil || *a.Follow)},
		{"titles", YesNo(a.Titles == nil || *a.Titles)},
	}
	add := func(name string, items ...string) {
		for _, v := range items {
			all = append(all, [2]string{name, p.Text(v)})
		}
	}
	for _, c := range a.Containers {
		add("container", strings.Join(nonEmpty(c.Name, strings.Join(c.Serves, " and ")), " serves "))
	}
	for _, v := range a.Volumes {
		add("volume", strings.TrimSuffix(v.Name+" ("+v.FullName+")", " ()"))
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
	for _, db := range a.Databases {
		if db.Env != "" {
			add("database.env", db.Name+":"+db.Env)
		}
	}
	r := a.Retention
	all = append(all,
		[2]string{"retention.keep_last", strconv.Itoa(r.KeepLast)},
		[2]string{"retention.daily_days", strconv.Itoa(r.DailyDays)},
		[2]string{"retention.keep_turns", strconv.Itoa(r.KeepTurns)},
		[2]string{"retention.keep_safety", strconv.Itoa(r.KeepSafety)},
		[2]string{"retention.max_bytes", p.Size(r.MaxBytes)},
		[2]string{"retention.expire_after", p.Text(r.ExpireAfter)},
	)
	add("fork.dir", nonEmpty(a.Forking.Dir)...)
	for _, port := range a.Forking.Expose {
		add("fork.expose", strconv.Itoa(port))
	}
	add("fork.isolation", nonEmpty(a.Forking.Isolation)...)
	add("fork.ports", a.Forking.Ports...)
	add("fork.dotenv", a.Forking.Dotenv...)
	add("fork.compose", nonEmpty(strings.Join(a.Forking.Compose, " "))...)
	if a.Forking.Network != nil {
		add("fork.network", strconv.FormatBool(*a.Forking.Network))
	}
	add("fork.expire_after", nonEmpty(a.Forking.ExpireAfter)...)
	add("remote.auto", nonEmpty(a.Remoting.Auto)...)
	if n := a.Remoting.KeepLast; n > 0 {
		add("remote.keep_last", strconv.Itoa(n))
	}
	if n := a.Remoting.DailyDays; n > 0 {
		add("remote.daily_days", strconv.Itoa(n))
	}
	all = append(all,
		[2]string{"created_at", p.Time(a.CreatedAt)},
	)
	add("covers", a.Covers...)
	for _, g := range a.Gaps {
		add("gap", DescribeGap(g))
	}
	add("note", a.Notes...)
	if a.Fork != nil {
		add("isolation", a.Fork.Isolation)
		add("note", a.Fork.Notes...)
	}
	add("problem", a.Problems...)
	return all
}

// DescribeGap returns what a gap is, and what to do about it, in one line.
func DescribeGap(g ipc.Gap) string { return g.Layer + ": " + g.What + " What to do: " + g.Remedy + "." }

func nonEmpty(words ...string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return w == "" })
}
