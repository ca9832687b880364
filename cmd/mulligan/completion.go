package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
	"mulligan/errs"
	"mulligan/ipc"
)

const completionLong = `Print the script that has a shell complete mulligan's commands, flags and the names of
apps. For this session:

  bash   source <(mulligan completion bash)        (needs the package bash-completion)
  zsh    source <(mulligan completion zsh)
  fish   mulligan completion fish | source

For all to come, write it to where the shell looks:

  bash   ~/.local/share/bash-completion/completions/mulligan
  zsh    a file _mulligan in a folder of $fpath
  fish   ~/.config/fish/completions/mulligan.fish`

type completionCmd struct{ *cli }

// shells lists the shells that have a completion script.
var shells = []string{"bash", "zsh", "fish"}

func newCompletion(c *cli) *cobra.Command {
	f := &completionCmd{cli: c}
	return &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "Print a shell's completion script",
		Long:      completionLong,
		Example:   "  source <(mulligan completion bash)",
		Args:      oneArg,
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			script, ok := map[string]func(io.Writer) error{
				"bash": func(w io.Writer) error { return cmd.Root().GenBashCompletionV2(w, true) },
				"zsh":  cmd.Root().GenZshCompletion,
				"fish": func(w io.Writer) error { return cmd.Root().GenFishCompletion(w, true) },
			}[args[0]]
			if !ok {
				return usage(cmd, "there is no script for %q; there is one for %s", args[0], strings.Join(shells, ", "))
			}
			return errs.Wrap(errs.Failed, "completion", script(f.out.Stdout))
		},
	}
}

// completeApps returns the slugs of the caller's apps for the shell to complete.
func (c *cli) completeApps(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	apps, err := c.client().Apps(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var slugs []string
	for _, a := range apps {
		slugs = append(slugs, output.Escape(a.Slug))
	}
	return slugs, cobra.ShellCompDirectiveNoFileComp
}

// completeCheckpoints returns the app's checkpoints for the shell to complete, newest first.
func (c *cli) completeCheckpoints(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	client, app, err := c.target(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	list, err := client.Checkpoints(cmd.Context(), app, ipc.CheckpointQuery{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var ids []string
	for _, cp := range list.Checkpoints {
		ids = append(ids, string(cp.ID)+"\t"+string(cp.Trigger)+" "+c.out.OptionalText(cp.Notes))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
