package ipc

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// RemotePlace says where a remote of an app is: a place in a bucket of an S3-compatible server.
type RemotePlace struct {
	Name     string `json:"name"`               // unique among the app's remotes
	URL      string `json:"url"`                // s3://BUCKET/PREFIX
	Endpoint string `json:"endpoint,omitempty"` // URL of the server; empty: AWS
	Region   string `json:"region,omitempty"`   // empty: the server is asked
	// Recipients are who can read what is sent, as age1…; this host cannot.
	Recipients []string `json:"recipients,omitempty"`
}

// BucketKeys are the credentials for a bucket. They are sent to the daemon, and never back.
type BucketKeys struct {
	AccessKey    string `json:"access_key,omitempty"` // empty: those of the daemon's configuration
	SecretKey    string `json:"secret_key,omitempty"`
	SessionToken string `json:"session_token,omitempty"`
}

// RemoteRequest adds a remote to an app. If the app has one of this name at this URL, it gets the new keys and recipients.
type RemoteRequest struct {
	RemotePlace
	BucketKeys
}

// Abilities says what a key can do in a bucket, as a check found.
type Abilities struct {
	Delete bool     `json:"delete"` // objects can be deleted
	Lock   bool     `json:"lock"`   // the bucket locks objects for a time
	Notes  []string `json:"notes"`  // the same in whole sentences
}

// Remote is a remote of an app, and how far it is behind.
type Remote struct {
	RemotePlace
	AppID     AppID     `json:"app_id"`
	Keys      string    `json:"keys"` // whose credentials are used: KeysOwn or KeysDaemon
	Abilities Abilities `json:"abilities"`
	AddedAt   time.Time `json:"added_at"`
	// LogKey is the name of the key of the remote's log. A clone of another log has another one.
	LogKey string `json:"log_key"`
	State  string `json:"state"` // RemoteIdle, RemoteSending, RemoteFailing, RemoteLost or RemoteReadOnly

	Checkpoints int `json:"checkpoints"` // that this host sent
	// UpTo is the newest checkpoint that is whole on the remote, and UpToMade the time at which it was made.
	UpTo     CheckpointID `json:"up_to,omitempty"`
	UpToMade *time.Time   `json:"up_to_made,omitempty"`
	// Behind is the number of checkpoints that are to be sent and are not there yet, and BehindSince when the oldest of them was made.
	Behind      int        `json:"behind"`
	BehindSince *time.Time `json:"behind_since,omitempty"`
	Left        []string   `json:"left,omitempty"`     // what the newest checkpoint there lacks, in whole sentences
	Problem     string     `json:"problem,omitempty"`  // why the last try that ended failed
	NextTry     *time.Time `json:"next_try,omitempty"` // after a failure
	Packs       int        `json:"packs"`              // that this host sent
	StoredBytes int64      `json:"stored_bytes"`       // of all that this host sent
	Requests    int64      `json:"requests"`           // to the server, since the daemon's start
	SentBytes   int64      `json:"sent_bytes"`         // since the daemon's start
}

// Whose credentials are used for a remote.
const (
	KeysOwn    = "own"    // those that were given when it was added
	KeysDaemon = "daemon" // those of the daemon's configuration
)

// The states of a remote.
const (
	RemoteIdle     = "idle"
	RemoteSending  = "sending"
	RemoteFailing  = "failing"   // the last try failed, and is repeated
	RemoteLost     = "lost"      // another host writes to it
	RemoteReadOnly = "read-only" // the app was cloned from it, and this host does not write to it
)

// When checkpoints go to an app's remotes by themselves.
const (
	RemoteAll    = "all"    // each one after it was made
	RemotePinned = "pinned" // those that are pinned
	RemoteDaily  = "daily"  // the first of each day, by UTC
)

// Remoting says how an app uses its remotes.
type Remoting struct {
	Auto string `json:"auto,omitempty"` // RemoteAll, RemotePinned, RemoteDaily, or empty: by hand only
	// KeepLast and DailyDays say what a prune of a remote keeps, beside what this host has and what is pinned: so many of the newest checkpoints, and the
	// first of each of so many of the newest days that have one there. If both are 0, it keeps all.
	KeepLast  int `json:"keep_last,omitempty"`
	DailyDays int `json:"daily_days,omitempty"`
}

// RemoteList is an answer that lists the remotes of an app.
type RemoteList struct {
	Remotes []Remote `json:"remotes"`
}

// PushRequest asks to send checkpoints to the app's remotes.
type PushRequest struct {
	Checkpoints []CheckpointID `json:"checkpoints,omitempty"` // empty: the newest
	Remote      string         `json:"remote,omitempty"`      // empty: all
	Wait        bool           `json:"wait,omitempty"`        // answer when they are there; else they are sent in the background
	// TakeOver makes this host the one that writes to the remote. Another host that does stops, and everything is sent again.
	TakeOver bool `json:"take_over,omitempty"`
}

// FetchRequest brings a checkpoint from a remote of the app to this host.
type FetchRequest struct {
	Checkpoint CheckpointID `json:"checkpoint"`       // or the beginning of its id
	Remote     string       `json:"remote,omitempty"` // empty: any of them
	Identity   string       `json:"identity"`         // text of an identity file
}

// CloneRequest makes an app on this host from a remote.
type CloneRequest struct {
	URL      string `json:"url"`
	Endpoint string `json:"endpoint,omitempty"`
	Region   string `json:"region,omitempty"`
	BucketKeys
	Identity   string       `json:"identity"`             // text of an identity file
	Source     string       `json:"source,omitempty"`     // slug of the app on the remote; empty: the only one
	Slug       string       `json:"slug,omitempty"`       // of the app here; empty: as there
	Dir        string       `json:"dir"`                  // workspace: absolute; it must not exist, or be empty
	Owner      string       `json:"owner,omitempty"`      // empty: the caller, or for root the owner there
	Checkpoint CheckpointID `json:"checkpoint,omitempty"` // or the beginning of its id; empty: the newest
	LogKey     string       `json:"log_key,omitempty"`    // the name that the key of the remote's log must have; empty: any
	Databases  []Database   `json:"databases,omitempty"`  // replace those of the same names
	TakeOver   bool         `json:"take_over,omitempty"`  // this host writes to the remote from now on
	NoStart    bool         `json:"no_start,omitempty"`
	DryRun     bool         `json:"dry_run,omitempty"` // only say what would be done, and what this host lacks
}

// CloneResult is the receipt of a clone.
type CloneResult struct {
	App        App             `json:"app"`
	Checkpoint CheckpointID    `json:"checkpoint"` // on the remote
	MadeAt     time.Time       `json:"made_at"`    // the checkpoint
	Host       string          `json:"host"`       // that sent it
	Remote     string          `json:"remote"`     // name of the app's remote here
	LogKey     string          `json:"log_key"`    // name of the key of the remote's log
	Lacks      []string        `json:"lacks"`      // what the app has less than there, in whole sentences
	Warnings   []string        `json:"warnings"`
	Rollback   *RollbackResult `json:"rollback"` // null for a dry run
	DryRun     bool            `json:"dry_run,omitempty"`
	Error      *ErrorBody      `json:"error,omitempty"` // why the clone failed after its rollback had begun
}

// RemoteCheck is the result of a check of what is on a remote.
type RemoteCheck struct {
	Remote  string `json:"remote"`
	Objects int    `json:"objects"` // that this host sent, and that were looked at
	OK      bool   `json:"ok"`
	// Problems say what was found damaged or missing, and which checkpoints need what is, in whole sentences. What is damaged is told once,
	// and the checkpoints each time until it was sent again.
	Problems []string `json:"problems"`
}

// RemotePrune is the result of a prune of a remote.
type RemotePrune struct {
	Remote     string             `json:"remote"`
	DryRun     bool               `json:"dry_run,omitempty"`
	Deleted    []PrunedCheckpoint `json:"deleted"` // oldest first
	Kept       int                `json:"kept"`    // checkpoints that this host sent
	Packs      int                `json:"packs"`   // objects of the bucket that were deleted
	FreedBytes int64              `json:"freed_bytes"`
	MovedBytes int64              `json:"moved_bytes"` // of what was sent again, because little of the pack that had it is needed
	Left       []string           `json:"left"`        // what else is there and was not removed, or not for good, in whole sentences
}

// PrunedCheckpoint is a checkpoint that a prune removed from a remote.
type PrunedCheckpoint struct {
	ID        CheckpointID `json:"checkpoint_id"`
	CreatedAt time.Time    `json:"created_at"`
}

// PruneRemote removes from a remote the checkpoints that the app's settings no longer keep there, or only says which.
func (c *Client) PruneRemote(ctx context.Context, app, name string, dryRun bool) (RemotePrune, error) {
	q := url.Values{}
	setFlag(q, "dry_run", dryRun)
	return askApp[RemotePrune](ctx, c, http.MethodPost, app, q, nil, "remotes", name, "prune")
}

// CheckRemote checks that what this host sent to a remote is there; with full also that it is as it was sent.
func (c *Client) CheckRemote(ctx context.Context, app, name string, full bool) (RemoteCheck, error) {
	q := url.Values{}
	setFlag(q, "full", full)
	return askApp[RemoteCheck](ctx, c, http.MethodPost, app, q, nil, "remotes", name, "check")
}

// Remotes lists the remotes of an app.
func (c *Client) Remotes(ctx context.Context, app string) (RemoteList, error) {
	return askApp[RemoteList](ctx, c, http.MethodGet, app, nil, nil, "remotes")
}

// AddRemote adds a remote to an app, after checking it.
func (c *Client) AddRemote(ctx context.Context, app string, req RemoteRequest) (Remote, error) {
	return askApp[Remote](ctx, c, http.MethodPost, app, nil, req, "remotes")
}

// RemoveRemote forgets a remote of an app. What is there stays.
func (c *Client) RemoveRemote(ctx context.Context, app, name string) error {
	_, err := askApp[nothing](ctx, c, http.MethodDelete, app, nil, nil, "remotes", name)
	return err
}

// Push sends checkpoints to the app's remotes.
func (c *Client) Push(ctx context.Context, app string, req PushRequest) (RemoteList, error) {
	return askApp[RemoteList](ctx, c, http.MethodPost, app, nil, req, "push")
}

// Fetch brings a checkpoint from a remote of the app to this host.
func (c *Client) Fetch(ctx context.Context, app string, req FetchRequest) (Checkpoint, error) {
	return askApp[Checkpoint](ctx, c, http.MethodPost, app, nil, req, "fetch")
}

// Clone makes an app from a remote. If its rollback began, and the clone failed, it returns both the result and the error.
func (c *Client) Clone(ctx context.Context, req CloneRequest) (CloneResult, error) {
	resp, err := c.send(ctx, http.MethodPost, "/api/clone", accepted(ctx), req)
	if err != nil {
		return CloneResult{}, err
	}
	defer resp.Body.Close()
	return readReceipt[CloneResult](ctx, c, resp)
}
