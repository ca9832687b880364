package ipc

import (
	"context"
	"net/http"
)

// Fork holds the properties that an app has only if it was made from a checkpoint of another app, its parent.
type Fork struct {
	Name       string       `json:"name"` // unique among the parent's forks
	Parent     AppID        `json:"parent"`
	Origin     CheckpointID `json:"origin"`                // the parent's checkpoint that the fork began with
	Isolation  string       `json:"isolation"`             // how it is kept apart: IsolationNamespace or IsolationPorts
	Notes      []string     `json:"notes,omitempty"`       // why it has this isolation, and what in it may lead to its parent, in whole sentences
	ParentPath string       `json:"parent_path"`           // where the fork's processes see the fork's folder: the first parent's workspace, or with IsolationPorts the folder itself
	ParentUnit string       `json:"parent_unit,omitempty"` // the first parent's systemd unit, which the fork's unit is a copy of
	Ports      []ForkPort   `json:"ports,omitempty"`
	// Servers describes, by the databases' names, what the servers of the fork's own are like, as the drivers wrote it.
	Servers map[string]string `json:"servers,omitempty"`
	// Env has the variables of the fork's commands that were set for it and, with IsolationPorts, those that lead to what is its own, and
	// Dotenv the lines of dotenv files that do so. Their values are the daemon's alone.
	Env    map[string]string `json:"env,omitempty"`
	Dotenv []DotenvLine      `json:"dotenv,omitempty"`
	// Lent: it was stopped to be kept, and its dotenv files may have its parent's lines; after a crash it is started again.
	Lent   bool   `json:"lent,omitempty"`
	Making bool   `json:"making,omitempty"` // it is being made or dropped; after a crash it is dropped
	Folder string `json:"folder"`           // identifies the folder that was made for it, by its inode and when that was made
	// Project is the compose project that is the fork's own, ComposeFiles the compose files that it was made of, relative to the workspace, and Made
	// what the compose tool made: "container ID", "volume NAME", "network ID".
	Project      string   `json:"project,omitempty"`
	ComposeFiles []string `json:"compose_files,omitempty"`
	Made         []string `json:"made,omitempty"`
	Pinned       string   `json:"pinned,omitempty"` // the folder with the copy of the origin's files over which the fork's folder is mounted; empty: the fork has all its files itself
}

// Forking says how an app is forked.
type Forking struct {
	Dir    string `json:"dir,omitempty"`    // the folder in which the forks' folders are made, absolute or relative to the workspace; empty: one beside it
	Expose []int  `json:"expose,omitempty"` // ports of the app that each fork has an address for on the host, besides that of the health check
	// ExpireAfter is the time after which a fork that nobody touched is dropped, as in "24h"; empty: never.
	ExpireAfter string `json:"expire_after,omitempty"`
	// Isolation is how forks are kept apart from the app: IsolationNamespace, IsolationPorts, or empty: by namespaces where the kernel allows
	// them, and else by ports.
	Isolation string   `json:"isolation,omitempty"`
	Ports     []string `json:"ports,omitempty"`  // with IsolationPorts: the variables that hold the app's ports
	Dotenv    []string `json:"dotenv,omitempty"` // with IsolationPorts: files in the workspace whose lines set these variables
	// Compose is the command that makes the projects of forks, for an app that is a compose project; empty: the tool that made the app's.
	Compose []string `json:"compose,omitempty"`
	// Network says whether forks have a way out, to where their host gets to; null: they have one, where the host can make one. Of a fork it says
	// whether that fork has one.
	Network *bool `json:"network,omitempty"`
}

// HasNetwork reports whether forks are to have a way out.
func (f Forking) HasNetwork() bool { return f.Network == nil || *f.Network }

// DotenvLine is a line of a dotenv file that differs between a fork and its parent.
type DotenvLine struct {
	File     string `json:"file"` // relative to the workspace
	Variable string `json:"variable"`
	Was      string `json:"was,omitempty"` // the parent's line
	Is       string `json:"is,omitempty"`  // the fork's
}

// ForkPort is a port of a fork's app: its number inside, and the address that leads to it from the host.
type ForkPort struct {
	Port     int    `json:"port"` // 0: not known
	Address  string `json:"address"`
	Variable string `json:"variable,omitempty"` // with IsolationPorts: the variable that holds the address's port
}

// The isolations of forks.
const (
	IsolationNamespace = "namespace" // the fork's processes have namespaces of their own, and see the fork at its parent's path and ports
	IsolationPorts     = "ports"     // they run on the host, in the fork's folder, and are told ports of their own
)

// ForkRequest asks for forks of an app.
type ForkRequest struct {
	CheckpointID CheckpointID `json:"checkpoint_id,omitempty"` // empty: a new checkpoint
	Name         string       `json:"name,omitempty"`          // empty: a number
	Count        int          `json:"count,omitempty"`         // 0 is 1
	Dir          string       `json:"dir,omitempty"`           // the fork's folder; empty: a new one in a folder beside the workspace
	NoStart      bool         `json:"no_start,omitempty"`
	NoNetwork    bool         `json:"no_network,omitempty"` // the fork reaches nothing but its own loopback
	// Set has variables of the environment that the fork's commands get, by their names.
	Set map[string]string `json:"set,omitempty"`
	// WithMemory also saves the memory of the app's domain in the new checkpoint, so that the guests of forks go on where it is.
	WithMemory bool `json:"with_memory,omitempty"`
}

// ForkList is an answer that lists forks, each an app.
type ForkList struct {
	Forks []App `json:"forks"`
}

// KeepRequest asks to take the parent to the present state of one of its forks.
type KeepRequest struct {
	// Scope is what the parent gets of the fork: paths in the workspace, and "layer:NAME"; empty: everything. The checkpoint that the
	// parent gets of the fork has everything in any case.
	Scope   []string `json:"scope,omitempty"`
	DryRun  bool     `json:"dry_run,omitempty"`
	AndStay bool     `json:"and_stay,omitempty"` // the fork is not dropped afterwards
	// ConversationID, or the call that asks, says which session's turn it is a part of.
	ConversationID string `json:"conversation_id,omitempty"`
	CallID         CallID `json:"call_id,omitempty"`
}

// CompareRequest asks what the forks of an app changed, and how they are.
type CompareRequest struct {
	Names   []string `json:"names,omitempty"`   // of forks; empty: all
	Command []string `json:"command,omitempty"` // runs inside of each fork; empty: none
	Timeout string   `json:"timeout,omitempty"` // of the command; empty: ten minutes
}

// Comparison is an answer that compares forks.
type Comparison struct {
	Forks []ComparedFork `json:"forks"`
}

// ComparedFork says what a fork changed since its origin, and how it is.
type ComparedFork struct {
	Name       string       `json:"name"`
	AppID      AppID        `json:"app_id"`
	State      string       `json:"state"`
	Healthy    *bool        `json:"healthy"` // null: the app has no health check, or the fork was stopped
	Created    int          `json:"created"` // files, folders and rows that the fork made
	Modified   int          `json:"modified"`
	Deleted    int          `json:"deleted"`
	Changes    []DiffChange `json:"changes"`              // the first of them
	Unknown    []string     `json:"unknown,omitempty"`    // layers whose changes are not known
	Unreadable []string     `json:"unreadable,omitempty"` // layers that cannot be read, with the reason
	Command    *CommandRun  `json:"command,omitempty"`
}

// CommandRun is what became of a command inside of a fork.
type CommandRun struct {
	ExitCode int     `json:"exit_code"` // as a shell gives it
	TimedOut bool    `json:"timed_out,omitempty"`
	Seconds  float64 `json:"seconds"`
	Output   string  `json:"output"`            // the end of its standard output and error
	Problem  string  `json:"problem,omitempty"` // why it did not run
}

// BisectRequest asks for the first checkpoint at which a command fails.
type BisectRequest struct {
	Good    CheckpointID `json:"good,omitempty"`    // a checkpoint that is good; empty: one is looked for
	Bad     CheckpointID `json:"bad,omitempty"`     // a later one that is bad; empty: the present state
	Command []string     `json:"command,omitempty"` // runs inside of forks: 0 is good, 125 skips, all else is bad; empty: the app's health check
	Start   bool         `json:"start,omitempty"`   // the app is started in each fork before the command
	Jobs    int          `json:"jobs,omitempty"`    // forks at a time; 0 is 1
	Timeout string       `json:"timeout,omitempty"` // of the command; empty: ten minutes
	// NoNetwork: the forks of the tests reach nothing but their own loopbacks.
	NoNetwork bool `json:"no_network,omitempty"`
}

// The outcomes of a bisect.
const (
	BisectFound  = "found"       // Bad directly follows Good
	BisectRange  = "range"       // the checkpoints between Good and Bad were skipped
	BisectUnsure = "cannot_tell" // the command answers now this, now that
)

// BisectResult is the answer to a BisectRequest.
type BisectResult struct {
	Outcome      string         `json:"outcome"`
	Good         *Checkpoint    `json:"good"` // the last good checkpoint; null unless something was found
	Bad          *Checkpoint    `json:"bad"`  // the first bad one
	Skipped      []CheckpointID `json:"skipped"`
	Turns        []Turn         `json:"turns"`   // that wrote between Good and Bad
	Changes      []DiffChange   `json:"changes"` // the first differences between Good and Bad
	ChangesTotal int            `json:"changes_total"`
	Runs         []BisectRun    `json:"runs"`
}

// BisectRun is one test.
type BisectRun struct {
	CheckpointID CheckpointID `json:"checkpoint_id"`
	Verdict      string       `json:"verdict"` // good, bad or skip
	ExitCode     int          `json:"exit_code"`
	TimedOut     bool         `json:"timed_out,omitempty"`
	Seconds      float64      `json:"seconds"` // with the making of the fork
	Output       string       `json:"output"`
	Problem      string       `json:"problem,omitempty"` // why there could be no fork of the checkpoint
}

// Bisect finds the first checkpoint at which a command fails.
func (c *Client) Bisect(ctx context.Context, app string, req BisectRequest) (BisectResult, error) {
	return askApp[BisectResult](ctx, c, http.MethodPost, app, nil, req, "bisect")
}

// Fork makes forks of an app.
func (c *Client) Fork(ctx context.Context, app string, req ForkRequest) (ForkList, error) {
	return askApp[ForkList](ctx, c, http.MethodPost, app, nil, req, "forks")
}

// Forks lists the forks of an app.
func (c *Client) Forks(ctx context.Context, app string) (ForkList, error) {
	return askApp[ForkList](ctx, c, http.MethodGet, app, nil, nil, "forks")
}

// Keep takes an app to the present state of its fork. For a rollback that began and failed, it returns both the receipt and the error.
func (c *Client) Keep(ctx context.Context, app, fork string, req KeepRequest) (RollbackResult, error) {
	p, err := appPath(app, nil, "forks", fork, "keep")
	if err != nil {
		return RollbackResult{}, err
	}
	resp, err := c.send(ctx, http.MethodPost, p, accepted(ctx), req)
	if err != nil {
		return RollbackResult{}, err
	}
	defer resp.Body.Close()
	return readReceipt[RollbackResult](ctx, c, resp)
}

// DropFork removes a fork of an app.
func (c *Client) DropFork(ctx context.Context, app, fork string) error {
	_, err := askApp[nothing](ctx, c, http.MethodDelete, app, nil, nil, "forks", fork)
	return err
}

// CompareForks compares forks of an app.
func (c *Client) CompareForks(ctx context.Context, app string, req CompareRequest) (Comparison, error) {
	return askApp[Comparison](ctx, c, http.MethodPost, app, nil, req, "forks", "compare")
}
