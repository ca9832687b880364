package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"mulligan/cmd/mulligan/output"
	"mulligan/cmd/mulligan/values"
	"mulligan/errs"
	"mulligan/ipc"
)

// checkpoint returns the app that a command is about and the checkpoint that cp
// names: an id, the beginning of an id, N for the N-th newest, or @{TIME} for the newest at that time.
func (c *cli) checkpoint(ctx context.Context, cp string) (client *ipc.Client, app string, id ipc.CheckpointID, err error) {
	client, app, err = c.target(ctx)
	if err != nil {
		return nil, "", "", err
	}
	switch when, at := strings.CutPrefix(cp, "@"); {
	case at:
		id, err = newestAt(ctx, client, app, strings.TrimSuffix(strings.TrimPrefix(when, "{"), "}"))
	case strings.Trim(cp, "0123456789") == "":
		id, err = nthNewest(ctx, client, app, cp)
	default:
		id, err = byPrefix(ctx, client, app, cp)
	}
	return client, app, id, err
}

const opResolve = "find checkpoint"

// nthNewest returns the N-th newest checkpoint, for N in digits.
func nthNewest(ctx context.Context, client *ipc.Client, app, digits string) (ipc.CheckpointID, error) {
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 {
		return "", errs.New(errs.Invalid, opResolve, "%q is no checkpoint: 1 is the newest", digits).WithHint("see `mulligan list`")
	}
	list, err := client.Checkpoints(ctx, app, ipc.CheckpointQuery{})
	if err != nil {
		return "", err
	}
	have := 0
	for _, cp := range list.Checkpoints {
		if cp.CalledOff { // its rollback changed nothing
			continue
		}
		if have++; have == n {
			return cp.ID, nil
		}
	}
	return "", errs.New(errs.NotFound, opResolve, "%s is no checkpoint: the app has %s", digits, output.Count(have, "checkpoint")).
		WithHint("see `mulligan list`")
}

// newestAt returns the newest checkpoint that had been made at a time.
func newestAt(ctx context.Context, client *ipc.Client, app, when string) (ipc.CheckpointID, error) {
	at, err := values.When(when, time.Now())
	if err != nil {
		return "", errs.Wrap(errs.Invalid, opResolve, err)
	}
	list, err := client.Checkpoints(ctx, app, ipc.CheckpointQuery{})
	if err != nil {
		return "", err
	}
	for _, cp := range list.Checkpoints {
		if !cp.CalledOff && !cp.CreatedAt.After(at) {
			return cp.ID, nil
		}
	}
	return "", errs.New(errs.NotFound, opResolve, "the app had no checkpoint at %s", at.Format(time.DateTime)).WithHint("see `mulligan list`")
}

// byPrefix returns the one checkpoint whose id begins with prefix.
func byPrefix(ctx context.Context, client *ipc.Client, app, prefix string) (ipc.CheckpointID, error) {
	if !strings.HasPrefix(prefix, "cp-") {
		return "", errs.New(errs.Invalid, opResolve, "%q names no checkpoint", prefix).
			WithHint("give an id (cp-…), the beginning of one, N for the N-th newest, or a time as in '@{2 hours ago}'")
	}
	list, err := client.Checkpoints(ctx, app, ipc.CheckpointQuery{})
	if err != nil {
		return "", err
	}
	var found []string
	for _, cp := range list.Checkpoints {
		if string(cp.ID) == prefix {
			return cp.ID, nil
		}
		if strings.HasPrefix(string(cp.ID), prefix) {
			found = append(found, string(cp.ID))
		}
	}
	switch len(found) {
	case 0:
		return "", errs.New(errs.NotFound, opResolve, "the app has no checkpoint %s", prefix).WithHint("see `mulligan list`")
	case 1:
		return ipc.CheckpointID(found[0]), nil
	}
	return "", errs.New(errs.Invalid, opResolve, "%s is the beginning of %s and %s", prefix, found[0], output.Count(len(found)-1, "other id")).
		WithHint("give more of it")
}
