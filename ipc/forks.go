package ipc

import (
	"context"
	"net/http"
)

// Fork holds the properties that an app has only if it was made from a checkpoint of another app, its parent.
type Fork struct {
	Name       string       `json:"name"` // unique among the parent's forks
	Parent     AppID        `json:"parent"`
	Origin     CheckpointID `json:"origin"` // the parent's checkpoint that the fork began with
	Isolation  string       `json:"isolation"`
	ParentPath string       `json:"parent_path"`           // the workspace of the first parent, where the fork's processes see the fork's folder
	ParentUnit string       `json:"parent_unit,omitempty"` // the first parent's systemd unit, which the fork's unit is a copy of
	Ports      []ForkPort   `json:"ports,omitempty"`
	// Servers describes, by the databases' names, what the servers of the fork's own are like, as the drivers wrote it.
	Servers map[string]string `json:"servers,omitempty"`
	Making  bool              `json:"making,omitempty"` // it is being made or dropped; after a crash it is dropped
	Folder  string            `json:"folder"`           // identifies the folder that was made for it: device and inode
}

// ForkPort is a port of a fork's app: its number inside, and the address that leads to it from the host.
type ForkPort struct {
	Port    int    `json:"port"`
	Address string `json:"address"`
}

// IsolationNamespace is the isolation of forks whose processes have namespaces of their own.
const IsolationNamespace = "namespace"

// ForkRequest asks for forks of an app.
type ForkRequest struct {
	CheckpointID CheckpointID `json:"checkpoint_id,omitempty"` // empty: a new checkpoint
	Name         string       `json:"name,omitempty"`          // empty: a number
	Count        int          `json:"count,omitempty"`         // 0 is 1
	Dir          string       `json:"dir,omitempty"`           // the fork's folder; empty: a new one in a folder beside the workspace
	NoStart      bool         `json:"no_start,omitempty"`
}

// ForkList is an answer that lists forks, each an app.
type ForkList struct {
	Forks []App `json:"forks"`
}

// KeepRequest asks to take the parent to the present state of one of its forks.
type KeepRequest struct {
	DryRun  bool `json:"dry_run,omitempty"`
	AndStay bool `json:"and_stay,omitempty"` // the fork is not dropped afterwards
}

// Fork makes forks of an app.
func (c *Client) Fork(ctx context.Context, app string, req ForkRequest) (ForkList, error) {
	return askApp[ForkList](ctx, c, http.MethodPost, app, nil, req, "forks")
}

// Forks lists the forks of an app.
func (c *Client) Forks(ctx context.Context, app string) (ForkList, error) {
	return askApp[ForkList](ctx, c, http.MethodGet, app, nil, nil, "forks")
}

// Keep takes an app to the present state of its fork.
func (c *Client) Keep(ctx context.Context, app, fork string, req KeepRequest) (RollbackResult, error) {
	return askApp[RollbackResult](ctx, c, http.MethodPost, app, nil, req, "forks", fork, "keep")
}

// DropFork removes a fork of an app.
func (c *Client) DropFork(ctx context.Context, app, fork string) error {
	_, err := askApp[nothing](ctx, c, http.MethodDelete, app, nil, nil, "forks", fork)
	return err
}
