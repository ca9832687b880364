package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"mulligan/errs"
	"mulligan/ipc"
)

const logLong = `Print the app's audit trail, newest first: who did what, when, to which checkpoint,
why, and how it went.

With --verify, also check that the trail is what was written: each entry's hash covers
the one before it. The last hash is printed; whoever notes it will also see a trail that
was cut short. A trail that was tampered with is exit code 1.

In a pipe, the fields are: time, actor, action, target, result (ok or the kind of
the error), reason.`

type logCmd struct {
	*cli
	limit  int
	verify bool
}

func newLog(c *cli) *cobra.Command {
	f := &logCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "log",
		Short:   "Print the audit trail",
		Long:    logLong,
		Example: "  mulligan log --limit 20",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.limit < 0 {
				return usage(cmd, "--limit %d is negative", f.limit)
			}
			return f.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&f.verify, "verify", false, "check the trail's hashes")
	cmd.Flags().IntVar(&f.limit, "limit", 50, "at most `N`; 0 is all")
	return cmd
}

func (f *logCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	list, err := f.fetch(ctx, client, app)
	if err != nil {
		return err
	}
	if f.out.JSON {
		err = f.out.PrintJSON(list)
	} else {
		f.print(list)
	}
	if err == nil && list.Check != nil && !list.Check.OK {
		err = errs.New(errs.Corrupt, "log", "the audit trail was tampered with: %s", list.Check.Problem).
			WithHint("compare mulligan.db in the state folder with a backup")
	}
	return err
}

func (f *logCmd) fetch(ctx context.Context, client *ipc.Client, app string) (list ipc.AuditList, err error) {
	if f.verify {
		return client.VerifyAudit(ctx, app, f.limit)
	}
	list.Entries, err = client.Audit(ctx, app, f.limit)
	return list, err
}

func (f *logCmd) print(list ipc.AuditList) {
	var rows [][]string
	for _, e := range list.Entries {
		rows = append(rows, []string{
			f.out.Time(e.At), f.out.Text(e.Actor), f.out.Text(e.Action), f.out.Text(e.Target), f.out.Text(e.Result), f.out.Text(e.Reason),
		})
	}
	f.out.Table([]string{"WHEN", "WHO", "ACTION", "TARGET", "RESULT", "REASON"}, rows, "WHO")
	if c := list.Check; c != nil && c.OK {
		f.out.Fields([][2]string{{"verified_entries", fmt.Sprint(c.Entries)}, {"head", c.Head}})
	}
}
