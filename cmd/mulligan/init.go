package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/appkeys"
	"mulligan/cmd/mulligan/detect"
	"mulligan/cmd/mulligan/doctor"
	"mulligan/cmd/mulligan/launch"
	"mulligan/cmd/mulligan/output"
	"mulligan/cmd/mulligan/values"
	"mulligan/errs"
	"mulligan/ipc"
)

const initLong = `Register a folder as an app of your own daemon, and start that daemon if none runs:
mulligand --user, found beside this program or in PATH. If none is named, it is the root
of the project that the current folder is in: the folder with .git, else with a file of a
workspace such as go.work; else the current folder.

It looks for git, for SQLite files (by their header), for database URLs such as
DATABASE_URL in .env, and for a compose project with its databases and volumes, says
what will be protected and what not, and asks one question, unless --yes or --json is
given or it is not run from a terminal. The answer may be a change, as auto=false,
run='npm start', health.url=URL or database=SPEC: the keys of mulligan app set.
Checkpoints at the first write of every turn of an agent's work are on unless you
switch them off there; with --yes they are off unless --auto is given. A folder that is
an app already is left as it is.

Your daemon starts with the first command after a reboot. Where systemd runs your session,
init offers to have it start your daemon at every login as well: login=false in the answer
switches that off, and --login switches it on where nothing is asked.

A Postgres server of your own that serves such a URL is named, with how its checkpoints
become marks in its log (mode physical).

In a pipe: "protects", "offers" and "leaves_out" lines with what was found, then "result" (added or
unchanged), then the app's fields as mulligan app show prints them.`

type initCmd struct {
	*cli
	slug    string
	yes     bool
	auto    bool
	offered bool   // login can be chosen
	login   bool   // the service manager starts the daemon at every login
	root    string // what makes the folder the project's root; "" if the folder was named
}

func newInit(c *cli) *cobra.Command {
	f := &initCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "init [DIR]",
		Short:   "Protect a folder",
		Long:    initLong,
		Example: "  cd ~/shop && mulligan init\n  mulligan init ~/shop --slug shop --yes",
		Args:    func(cmd *cobra.Command, args []string) error { return countArgs(cmd, args, 0, 1) },
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := realDir("init", append(args, ".")[0])
			if err != nil {
				return err
			}
			if len(args) == 0 {
				home, _ := os.UserHomeDir() // without one, the project is looked for up to /
				dir, f.root = detect.Root(dir, home)
			}
			return f.run(cmd.Context(), dir)
		},
	}
	cmd.Flags().StringVar(&f.slug, "slug", "", "the app's short name (default: the folder's)")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "don't ask")
	cmd.Flags().BoolVar(&f.auto, "auto", false, "make a checkpoint by itself at the first write of every turn")
	cmd.Flags().BoolVar(&f.login, "login", false, "have systemd start your daemon at every login")
	return cmd
}

func (f *initCmd) run(ctx context.Context, dir string) error {
	client, err := f.launcher().Connect(ctx)
	if err != nil && !errors.Is(err, ipc.ErrNoDaemon) {
		return err
	}
	if err == nil {
		if done, err := f.reportExisting(ctx, client, dir); done || err != nil {
			return err
		}
	}
	if err := f.checkState(client, dir); err != nil {
		return err
	}
	found, err := detect.App(ctx, dir)
	if err != nil {
		return err
	}
	if f.slug == "" {
		f.slug = detect.Slug(dir)
	}
	f.printFindings(dir, found)
	app := f.proposal(dir, found)
	f.offered = (client == nil || client.Socket() != ipc.HostSocket) && f.launcher().AtLogin(ctx)
	if f.login && !f.offered {
		return errs.New(errs.Unsupported, "init", "--login: systemd does not run this session, or starts your daemon at login already").WithHint("leave it out; your daemon starts with the first command after a reboot")
	}
	f.login = f.login || f.offered && f.asks()
	if err := f.ask(ctx, &app); err != nil {
		return err
	}
	enable := f.launcher().Renew // what an earlier init enabled
	if f.login {
		enable = f.launcher().Enable
	}
	if err := enable(ctx); err != nil { // the folder is protected all the same
		f.out.Note("init", ipc.Body(err).Message+"; your daemon starts with the first command after a login")
	}
	if client == nil {
		if client, err = f.launcher().Start(ctx); err != nil {
			return err
		}
		// The state folder may be older than this start: the daemon may know the folder.
		if done, err := f.reportExisting(ctx, client, dir); done || err != nil {
			return err
		}
	}
	return f.register(ctx, client, app, found)
}

// checkState refuses a folder that holds the state of the user's own daemon, as a home folder does, before anything is asked: the daemon
// would refuse it too. client is nil if no daemon runs yet.
func (f *initCmd) checkState(client *ipc.Client, dir string) error {
	state, err := launch.StateDir()
	if err != nil || client != nil && client.Socket() == ipc.HostSocket {
		return nil // the daemon itself says what it lacks
	}
	rel, err := filepath.Rel(dir, state)
	if err != nil || !filepath.IsLocal(rel) {
		return nil
	}
	return errs.New(errs.Invalid, "init", "%s holds mulligan's own state (%s)", dir, state).
		WithHint("protect the folder of a project: `mulligan init DIR`")
}

// reportExisting reports whether dir is the workspace of an app, and prints that app.
func (f *initCmd) reportExisting(ctx context.Context, client *ipc.Client, dir string) (bool, error) {
	apps, err := client.Apps(ctx)
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(apps, func(a ipc.App) bool { return filepath.Clean(a.Workspace) == dir })
	if at < 0 {
		return false, nil
	}
	app := apps[at]
	if f.out.Terminal && !f.out.JSON {
		f.out.Printf("%s is the app %s already; nothing was changed\n", f.out.Text(dir), f.out.Text(app.Slug))
		return true, nil
	}
	return true, f.result("unchanged", app)
}

// result prints the outcome and the app for programs.
func (f *initCmd) result(outcome string, app ipc.App) error {
	if f.out.JSON {
		return f.out.PrintJSON(app)
	}
	f.out.Fields(append([][2]string{{"result", outcome}}, f.out.AppFields(app)...))
	return nil
}

// printFindings prints what will be protected and what not.
func (f *initCmd) printFindings(dir string, found detect.Findings) {
	if f.out.JSON {
		return
	}
	var pairs [][2]string
	if f.root != "" {
		pairs = append(pairs, [2]string{"root", f.out.Text(dir + " has " + f.root)})
	}
	for _, p := range found.Protected(dir) {
		pairs = append(pairs, [2]string{p[0], f.out.Text(p[1])})
	}
	for _, db := range found.Databases {
		if dir := doctor.OwnCluster("/proc", os.Getuid(), db.Database); dir != "" {
			pairs = append(pairs, [2]string{"offers", f.out.Text(doctor.MarkerAdvice(dir, db.Database))})
		}
	}
	for _, s := range found.Unprotected {
		pairs = append(pairs, [2]string{"leaves_out", f.out.Text(s)})
	}
	if f.out.Terminal {
		f.out.Printf("%s, as the app %q:\n", f.out.Text(dir), f.slug)
	}
	f.out.Fields(pairs)
}

// proposal returns the app as it is registered unless the person changes it.
func (f *initCmd) proposal(dir string, found detect.Findings) ipc.App {
	app := ipc.App{Slug: f.slug, Workspace: dir, Auto: f.auto || f.asks(), Retention: ipc.DefaultRetention()}
	for _, db := range found.Databases {
		app.Databases = append(app.Databases, db.Database)
	}
	if app.Unit = found.Project.Unit(); app.Unit != "" {
		for _, v := range found.Project.Volumes {
			app.Volumes = append(app.Volumes, ipc.Volume{Name: v})
		}
	}
	return app
}

// asks reports whether a person is asked.
func (f *initCmd) asks() bool { return !f.yes && f.interactive() }

// ask asks whether to go on, if a person sits at the terminal, until the answer is yes or no. An answer KEY=VALUE is a change to app.
func (f *initCmd) ask(ctx context.Context, app *ipc.App) error {
	if !f.asks() {
		return nil
	}
	in := bufio.NewReader(f.in)
	for {
		f.printSettings(*app)
		f.out.Print("Protect it like this? [Y/n, or a change as auto=false] ")
		line, err := f.line(ctx, in)
		if err != nil {
			return err
		}
		if !strings.Contains(line, "=") {
			yes, ok := values.YesNo(cmp.Or(line, "yes"))
			switch {
			case ok && yes:
				return nil
			case ok:
				return errs.New(errs.Failed, "init", "the question was answered with no").WithHint("nothing was changed")
			}
			f.out.Printf("%q is neither yes or no, nor a change as auto=false\n", f.out.Text(line))
			continue
		}
		if words, err := values.Command(line); err == nil && len(words) == 1 {
			line = words[0] // in quotes, as one writes it in a shell
		}
		if value, ok := strings.CutPrefix(line, "login="); ok && f.offered {
			if on, ok := values.YesNo(value); ok {
				f.login = on
			} else {
				f.out.Printf("login is yes or no, not %s\n", f.out.Text(value))
			}
			continue
		}
		tried := *app
		tried.Databases = slices.Clone(app.Databases)
		if err := appkeys.Set(&tried, new(ipc.AppChange), line); err != nil {
			body := ipc.Body(err)
			f.out.Printf("%s\n", f.out.Text(strings.TrimSuffix(body.Message+"; "+body.Hint, "; ")))
			continue
		}
		*app = tried
	}
}

// printSettings prints what a person may want to have another way, and all other settings that the app would be registered with unless they are
// those of every app.
func (f *initCmd) printSettings(app ipc.App) {
	automatic, databases, health, run := "off (auto=true: on)", "none (database=SPEC adds one)", "none (health.url=URL, health.command='COMMAND')", "nothing (run='COMMAND', unit=NAME)"
	if app.Auto {
		automatic = "on: at the first write of each turn of an agent (auto=false: off)"
	}
	if len(app.Databases) > 0 {
		var names []string
		for _, db := range app.Databases {
			names = append(names, db.Name)
		}
		databases = strings.Join(names, ", ") + " (database=SPEC adds one; database= leaves all out)"
	}
	if h := app.Health; h != nil {
		health = strings.TrimSpace(h.URL + " " + values.JoinWords(h.Command))
	}
	switch {
	case app.Unit != "":
		run = app.Unit
	case len(app.Run) > 0:
		run = values.JoinWords(app.Run)
	}
	pairs := [][2]string{
		{"checkpoints", automatic}, {"databases", f.out.Text(databases)}, {"health check", f.out.Text(health)}, {"stops and starts", f.out.Text(run)},
	}
	if f.offered {
		login := "not at login, but with the first command after it (login=true: at login)"
		if f.login {
			login = "at every login, by systemd (login=false: with the first command after it)"
		}
		pairs = append(pairs, [2]string{"your daemon starts", login})
	}
	plain := f.out.AppFields(ipc.App{Slug: app.Slug, Workspace: app.Workspace, Retention: ipc.DefaultRetention()})
	for _, field := range f.out.AppFields(app) {
		if !slices.Contains(plain, field) && !slices.Contains(worded, field[0]) {
			pairs = append(pairs, field)
		}
	}
	f.out.Fields(pairs)
}

// worded lists the fields of [output.Printer.AppFields] that printSettings prints in words of its own.
var worded = []string{"auto", "database", "health.url", "health.command", "unit", "run"}

// line reads a line from the terminal. At the end of the input it is "no".
func (f *initCmd) line(ctx context.Context, in *bufio.Reader) (string, error) {
	lines := make(chan string, 1)
	go func() { // a read of a terminal cannot be cancelled
		line, err := in.ReadString('\n')
		if err != nil && line == "" {
			line = "no"
		}
		lines <- line
	}()
	select {
	case <-ctx.Done():
		f.out.Println()
		return "", errs.Wrap(errs.Unavailable, "init", ctx.Err())
	case line := <-lines:
		return strings.TrimSpace(line), nil
	}
}

// register registers the app with the daemon and prints it. If the daemon refuses the containers that were found, or does not
// support a server's database, register leaves out the containers, or all databases of servers, and names them on standard error.
func (f *initCmd) register(ctx context.Context, client *ipc.Client, app ipc.App, found detect.Findings) error {
	added, err := client.AddApp(ctx, app)
	// A unit that a person named instead is not left out: the person changes the answer.
	if err != nil && app.Unit != "" && app.Unit == found.Project.Unit() && strings.Contains(ipc.Body(err).Message, "unit "+app.Unit) {
		f.out.Note("init", fmt.Sprintf("the containers and their volumes are NOT protected: %s; once that works: mulligan app set%s",
			ipc.Body(err).Message, found.ContainerArguments(app)))
		app = found.WithoutContainers(ctx, app)
		added, err = client.AddApp(ctx, app)
	}
	var left []string
	if errs.KindOf(err) == errs.Unsupported {
		app.Databases, left = detect.SplitServers(app.Databases, err)
		if len(left) > 0 {
			added, err = client.AddApp(ctx, app)
		}
	}
	if err != nil {
		return err
	}
	for _, l := range left {
		f.out.Note("init", l)
	}
	if f.out.JSON || !f.out.Terminal {
		return f.result("added", added)
	}
	for _, g := range added.Gaps {
		f.out.Printf("warning: %s\n", f.out.Text(output.DescribeGap(g)))
	}
	f.out.Printf("%s is the app %s now; `mulligan create` makes a checkpoint of it\n", f.out.Text(app.Workspace), f.out.Text(added.Slug))
	return nil
}
