package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/appkeys"
	"mulligan/cmd/mulligan/output"
	"mulligan/cmd/mulligan/values"
	"mulligan/ipc"
)

const appSetLong = `Change an app's settings. The keys are those of the app file:

  unit=NAME.service       run='COMMAND ARG…'      auto=true|false
  unit=compose:PROJECT    unit=container:NAME     (also accepts the containers that are there now)
  engine=SOCKET           volumes=NAME,…          (of containers; replaces all)
  domain=NAME             uri=URI                 shutdown=clean|destroy
  follow=true|false       (which files change is noted while they change; false: all are looked at)
  titles=true|false       (the first words of prompts are kept, to call turns by; false also removes,
                          for good, those that are kept so far)
  exclude=PATTERN,…       (gitignore syntax; replaces all; or a list: exclude=["PATTERN", …])
  health.url=URL          health.command='COMMAND ARG…'     health.timeout=10s
  retention.keep_last=N   retention.daily_days=N  retention.keep_turns=N
  retention.keep_safety=N
  retention.max_bytes=20GiB                       retention.expire_after=720h (0: never)
  fork.dir=FOLDER         fork.expose=PORT,…      fork.expire_after=24h (0: never)
  fork.network=true|false (false: forks reach nothing outside)
  fork.isolation=namespace|ports                  fork.ports=VARIABLE,…   fork.dotenv=FILE,…
  fork.compose=COMMAND (makes the compose projects of forks)
  remote.auto=all|pinned|daily                    remote.keep_last=N      remote.daily_days=N
  database=SPEC           (adds it, or replaces the one of that name; empty: none at all; SPEC
                          as mulligan app add has it)
  database.env=NAME:VARIABLE
  owner=NAME              (root, where the account of the app's uid has another name than it had:
                          it is the same owner's)

` + values.Help + `

` + values.CommandHelp + `

` + appFieldsHelp

type appSetCmd struct{ *cli }

func newAppSet(c *cli) *cobra.Command {
	f := &appSetCmd{cli: c}
	return &cobra.Command{
		Use:     "set KEY=VALUE...",
		Short:   "Change an app's settings",
		Long:    appSetLong,
		Example: "  mulligan app set auto=true retention.keep_last=20\n  mulligan app set --app shop 'exclude=*.log,tmp/'",
		Args:    func(cmd *cobra.Command, args []string) error { return countArgs(cmd, args, 1, len(args)) },
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args) },
	}
}

func (f *appSetCmd) run(ctx context.Context, pairs []string) error {
	client, name, err := f.target(ctx)
	if err != nil {
		return err
	}
	app, err := client.App(ctx, name)
	if err != nil {
		return err
	}
	var change ipc.AppChange
	for _, pair := range pairs {
		if err := appkeys.Set(&app, &change, pair); err != nil {
			return err
		}
	}
	titles := 0
	if change.Titles != nil && !*change.Titles {
		if titles, err = countTitles(ctx, client, name); err != nil {
			return err
		}
	}
	app, err = client.SetApp(ctx, name, change)
	if err != nil {
		return err
	}
	if err := f.out.PrintApp(app); err != nil {
		return err
	}
	if titles == 0 {
		return nil
	}
	said := output.Count(titles, "title") + " of turns removed for good"
	if f.out.Terminal && !f.out.JSON {
		f.out.Println(said)
	} else {
		f.out.Note("app set", said)
	}
	return nil
}

// countTitles counts the turns of an app that have a title.
func countTitles(ctx context.Context, client *ipc.Client, app string) (n int, err error) {
	turns, err := client.Turns(ctx, app, 0)
	for _, t := range turns {
		if t.Title != "" {
			n++
		}
	}
	return n, err
}
