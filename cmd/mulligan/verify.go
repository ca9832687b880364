package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
	"mulligan/errs"
)

const verifyLong = `Read everything that is stored for a checkpoint and compare it with its hashes.
With --quick, only check that all of it is there. Damage is exit code 1.

In a pipe: checkpoint id and "ok" or "damaged", then a line per problem: checkpoint
id, "problem", the layer, what is wrong; and per layer that could not be checked, as
the app has it no more: checkpoint id, "warning", nothing, what was not checked.`

type verifyCmd struct {
	*cli
	quick bool
}

func newVerify(c *cli) *cobra.Command {
	f := &verifyCmd{cli: c}
	cmd := &cobra.Command{
		Use:               "verify CP",
		Short:             "Check a checkpoint's stored data",
		Long:              verifyLong,
		Example:           "  mulligan verify 1",
		Args:              oneArg,
		ValidArgsFunction: c.completeCheckpoints,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().BoolVar(&f.quick, "quick", false, "only check that everything is there, without reading it")
	return cmd
}

func (f *verifyCmd) run(ctx context.Context, name string) error {
	client, app, id, err := f.checkpoint(ctx, name)
	if err != nil {
		return err
	}
	check := client.Verify
	if f.quick {
		check = client.VerifyQuickly
	}
	res, err := check(ctx, app, id)
	if err != nil {
		return err
	}
	if f.out.JSON {
		err = f.out.PrintJSON(res)
	} else {
		verdict := "ok"
		if !res.OK {
			verdict = "damaged"
		}
		rows := [][]string{{string(id), verdict}}
		for _, p := range res.Problems {
			rows = append(rows, []string{string(id), "problem", f.out.Text(p.Layer), f.out.Text(p.Message)})
		}
		for _, w := range res.Warnings {
			rows = append(rows, []string{string(id), "warning", "", f.out.Text(w)})
		}
		f.out.Prose([]string{"CHECKPOINT", "RESULT", "LAYER", "WHAT"}, rows)
	}
	if err == nil && !res.OK {
		err = errs.New(errs.Corrupt, "verify", "%s is damaged: %s", id, output.Count(len(res.Problems), "problem")).
			WithHint("choose another with `mulligan list`")
	}
	return err
}
