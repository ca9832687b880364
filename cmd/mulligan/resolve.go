package main

import (
	"context"
	"errors"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/naming"
)

// checkpoint returns the app that a command is about and the checkpoint that cp names, as package naming has it.
func (c *cli) checkpoint(ctx context.Context, cp string) (client *ipc.Client, app string, id ipc.CheckpointID, err error) {
	client, app, err = c.target(ctx)
	if err != nil {
		return nil, "", "", err
	}
	id, err = naming.Checkpoint(ctx, client, app, cp)
	var e *errs.Error
	if errors.As(err, &e) && e.Hint == "" && (e.Kind == errs.Invalid || e.Kind == errs.NotFound) {
		err = e.WithHint("see `mulligan list`")
	}
	return client, app, id, err
}
