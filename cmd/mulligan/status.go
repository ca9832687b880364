package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

const statusLong = `Show which daemon answers, what it stores, and what needs attention.

In a pipe: a line per field, its name (as in the API) and its value; recovered and
problem once per sentence.

With --token: a new bearer token of yours for the API on TCP, good for 30 days, alone on
a line. It has the scopes read, write and manage; for others see mulligan token add.
Only the eight newest tokens made this way are valid.`

type statusCmd struct {
	*cli
	token bool
}

func newStatus(c *cli) *cobra.Command {
	f := &statusCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the daemon's state",
		Long:    statusLong,
		Example: "  mulligan status",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&f.token, "token", false, "print a bearer token for the API on TCP")
	return cmd
}

func (f *statusCmd) printToken(ctx context.Context) error {
	t, err := f.client().AddToken(ctx, ipc.TokenRequest{
		Name: "status", Rotate: true, Scopes: []ipc.Scope{ipc.ScopeRead, ipc.ScopeWrite, ipc.ScopeManage},
	})
	switch {
	case err != nil:
		return err
	case f.out.JSON:
		return f.out.PrintJSON(t)
	}
	f.out.Println(t.Secret)
	return nil
}

func (f *statusCmd) run(ctx context.Context) error {
	if f.token {
		return f.printToken(ctx)
	}
	st, err := f.client().Status(ctx)
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(st)
	}
	all := [][2]string{
		{"version", f.out.Text(st.Version)},
		{"pid", strconv.Itoa(st.PID)},
		{"mode", f.out.Text(st.Mode)},
		{"socket", f.out.Text(st.Socket)},
		{"http", f.out.Text(st.HTTP)},
		{"state_dir", f.out.Text(st.StateDir)},
		{"started_at", f.out.Time(st.StartedAt)},
		{"apps", strconv.Itoa(st.Apps)},
		{"store_bytes", f.out.Size(st.StoreBytes)},
	}
	for _, s := range st.Recovered {
		all = append(all, [2]string{"recovered", f.out.Text(s)})
	}
	for _, s := range st.Problems {
		all = append(all, [2]string{"problem", f.out.Text(s)})
	}
	f.out.Fields(all)
	return nil
}
