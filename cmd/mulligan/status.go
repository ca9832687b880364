package main

import (
	"context"
	"fmt"
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
	case f.json:
		return f.printJSON(t)
	}
	fmt.Fprintln(f.out, t.Secret) // f.out remembers its error
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
	if f.json {
		return f.printJSON(st)
	}
	all := [][2]string{
		{"version", f.text(st.Version)},
		{"pid", strconv.Itoa(st.PID)},
		{"mode", f.text(st.Mode)},
		{"socket", f.text(st.Socket)},
		{"http", f.text(st.HTTP)},
		{"state_dir", f.text(st.StateDir)},
		{"started_at", f.when(st.StartedAt)},
		{"apps", strconv.Itoa(st.Apps)},
		{"store_bytes", f.size(st.StoreBytes)},
	}
	for _, s := range st.Recovered {
		all = append(all, [2]string{"recovered", f.text(s)})
	}
	for _, s := range st.Problems {
		all = append(all, [2]string{"problem", f.text(s)})
	}
	f.fields(all)
	return nil
}
