package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/values"
	"mulligan/ipc"
)

func newToken(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "token",
		Short:   "Make, list and revoke bearer tokens for programs on TCP",
		Example: "  mulligan token add --name ci --scope read --scope write --expires 720h\n  mulligan token list",
	}
	cmd.AddCommand(newTokenAdd(c), newTokenList(c), newTokenRevoke(c))
	return group(cmd)
}

const tokenAddLong = `Make a bearer token for the API on TCP (mulligand --http ADDR). It reaches what you
reach, as far as its scopes go:

  read     look: apps, checkpoints, diffs, turns, the audit trail
  write    make and delete checkpoints, roll back, tell of turns
  manage   register, change and remove apps
  metrics  GET /metrics, over all apps (root's to give)

Its secret is printed once and kept nowhere: only a hash of it is. Clients send it
as "Authorization: Bearer SECRET".

In a pipe: a line per field, its name and its value; token is the secret.`

type tokenAddCmd struct {
	*cli
	req    ipc.TokenRequest
	scopes []string
}

func newTokenAdd(c *cli) *cobra.Command {
	f := &tokenAddCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "add",
		Short:   "Make a token",
		Long:    tokenAddLong,
		Example: "  mulligan token add --name grafana --scope metrics --expires 0\n  mulligan token add --app shop --scope read --scope write",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&f.req.Name, "name", "", "the token's purpose, in your own `WORDS`")
	cmd.Flags().StringSliceVar(&f.scopes, "scope", []string{"read"}, "what it allows: `read|write|manage|metrics`; may be repeated")
	cmd.Flags().StringVar(&f.req.Expires, "expires", "720h", "how long it is valid, as a `TIME` like 720h; 0: until it is revoked")
	return cmd
}

func (f *tokenAddCmd) run(ctx context.Context) error {
	for _, s := range f.scopes {
		f.req.Scopes = append(f.req.Scopes, ipc.Scope(s))
	}
	if f.app != "" {
		f.req.Apps = []string{f.app}
	}
	t, err := f.client().AddToken(ctx, f.req)
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(t)
	}
	f.out.Fields([][2]string{
		{"token_id", f.out.Text(string(t.ID))}, {"name", f.out.Text(t.Name)}, {"owner", f.out.Text(t.Owner)},
		{"scopes", f.out.Text(values.Commas(t.Scopes))}, {"apps", f.out.Text(values.Commas(t.Apps))}, {"expires_at", f.expiry(t.Token)},
		{"token", f.out.Text(t.Secret)},
	})
	return nil
}

// expiry returns when a token expires, for printing.
func (c *cli) expiry(t ipc.Token) string {
	if t.ExpiresAt == nil {
		return "never"
	}
	return c.out.Time(*t.ExpiresAt)
}

const tokenListLong = `List your tokens, oldest first; root sees everybody's.

In a pipe, the fields are: token id, name, owner, scopes, app ids ("-": all apps),
when it expires (or "never"), when it was made.`

type tokenListCmd struct{ *cli }

func newTokenList(c *cli) *cobra.Command {
	f := &tokenListCmd{cli: c}
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List tokens",
		Long:    tokenListLong,
		Example: "  mulligan token list",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
}

func (f *tokenListCmd) run(ctx context.Context) error {
	tokens, err := f.client().Tokens(ctx)
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(ipc.TokenList{Tokens: tokens})
	}
	var rows [][]string
	for _, t := range tokens {
		rows = append(rows, []string{
			f.out.Text(string(t.ID)), f.out.Text(t.Name), f.out.Text(t.Owner), f.out.Text(values.Commas(t.Scopes)), f.out.Text(values.Commas(t.Apps)),
			f.expiry(t), f.out.Time(t.CreatedAt),
		})
	}
	f.out.Table([]string{"TOKEN", "NAME", "OWNER", "SCOPES", "APPS", "EXPIRES", "MADE"}, rows, "MADE", "OWNER")
	return nil
}

type tokenRevokeCmd struct{ *cli }

func newTokenRevoke(c *cli) *cobra.Command {
	f := &tokenRevokeCmd{cli: c}
	return &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke a token; its connections are closed at once",
		Long:    "End a token, named by the id that mulligan token list shows. Its connections\nare closed at once. A rollback that it began goes on.",
		Example: "  mulligan token revoke tk-4f2a6b1c9d0e",
		Args:    oneArg,
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
}

func (f *tokenRevokeCmd) run(ctx context.Context, id string) error {
	return f.client().RevokeToken(ctx, ipc.TokenID(id))
}
