// Package ipc is the API between mulligan's programs: its types, the parts of its HTTP server that are independent of the
// daemon (peer credentials, events, limits), and the typed client that the CLI and the MCP server use. The kinds of errors are
// in errs.
//
// The API is HTTP/1.1 with JSON bodies over the daemon's unix socket.
package ipc

import (
	"encoding/json"
	"time"
)

// Types of ids, so that they are not confused. Clients must not interpret them.
type (
	AppID        string // "app-" and hex digits
	CheckpointID string // "cp-" and at least 12 hex digits
	OperationID  string // "op-" and hex digits
)

// Trigger says why a checkpoint was made.
type Trigger string

// The triggers.
const (
	TriggerDeploy      Trigger = "deploy"
	TriggerManual      Trigger = "manual"
	TriggerAgent       Trigger = "agent"
	TriggerPreRollback Trigger = "pre-rollback"
)

// Quiesce says whether the app is stopped while it is captured.
type Quiesce string

// The ways to quiesce. The empty string means QuiesceStop, except for an app with a libvirt domain: only its unit on the host
// is stopped. The guest continues, and its agent freezes its filesystems for a moment.
const (
	QuiesceStop Quiesce = "stop" // the unit is stopped and started again
	QuiesceNone Quiesce = "none" // the unit continues to run
)

// OnUnhealthy says what a rollback does if the health check fails at its end.
type OnUnhealthy string

// The empty string means UnhealthyKeep.
const (
	UnhealthyKeep OnUnhealthy = "keep" // keep the restored state and say that it is not healthy
	UnhealthyUndo OnUnhealthy = "undo" // go back to the safety checkpoint
)

// App is a registered app.
type App struct {
	ID        AppID    `json:"app_id"`
	Slug      string   `json:"slug"`
	Owner     string   `json:"owner"` // a user's name, or its uid in digits where it has none
	Workspace string   `json:"workspace"`
	Unit      string   `json:"unit,omitempty"`
	Run       []string `json:"run,omitempty"` // a command that the daemon supervises, where there is no unit
	// Engine is the socket of the container engine, for a unit that is containers. Empty in a registration: the one that has them.
	Engine string `json:"engine,omitempty"`
	// EngineAs says with whose rights the daemon connects to Engine: "root", if root named the containers, or "owner". The daemon sets
	// it.
	EngineAs string `json:"engine_as,omitempty"`
	// Volumes of the containers are captured. A registration sets only their names.
	Volumes []Volume `json:"volumes,omitempty"`
	// Containers are those of the unit. The daemon sets them when unit, engine or volumes are set.
	Containers []Container `json:"containers,omitempty"`
	Domain     string      `json:"domain,omitempty"`
	URI        string      `json:"uri,omitempty"`      // libvirt's, for Domain
	Shutdown   string      `json:"shutdown,omitempty"` // how Domain goes down: clean (default) or destroy
	Auto       bool        `json:"auto"`
	Follow     *bool       `json:"follow,omitempty"`  // whether changed paths are noted, so that nothing else is looked at; null is true where the host can
	Titles     *bool       `json:"titles,omitempty"`  // false: the first words of prompts are not kept; null is true
	Exclude    []string    `json:"exclude,omitempty"` // gitignore syntax
	Health     *Health     `json:"health,omitempty"`
	Retention  Retention   `json:"retention"`
	Databases  []Database  `json:"databases,omitempty"`
	Forking    Forking     `json:"forking,omitzero"`
	Remoting   Remoting    `json:"remoting,omitzero"`
	CreatedAt  time.Time   `json:"created_at"`
	Fork       *Fork       `json:"fork,omitempty"` // nil: it is not a fork

	// The present state of the app; empty in a registration.
	State    string   `json:"state,omitempty"`    // running, stopped, failed, none (it has no unit), unknown
	Busy     string   `json:"busy,omitempty"`     // the operation under way, if any
	Problems []string `json:"problems,omitempty"` // what needs a person's attention, in whole sentences
	Covers   []string `json:"covers,omitempty"`   // what a checkpoint of it holds, a line per layer
	Notes    []string `json:"notes,omitempty"`    // what registering or changing it changed outside of mulligan, in whole sentences
	// Gaps are determined when the app is registered and on request.
	Gaps []Gap `json:"gaps,omitempty"`
	// Following is the state of watching the app's files for automatic checkpoints: starting, watching, rescanning (events were
	// lost, and all files are examined) or degraded (Problems has the reason and a remedy). If automatic checkpoints are off: noting, if
	// the daemon notes which files change so that a checkpoint looks at those alone, else "".
	Following string `json:"following,omitempty"`
}

// Volume is a volume of an app's containers.
type Volume struct {
	Name     string `json:"name"`                // as the app names it, and its layer
	FullName string `json:"full_name,omitempty"` // as the engine names it; the daemon sets it
	Dir      string `json:"dir,omitempty"`       // the folder with its files; the daemon sets it
}

// Container is a container of an app.
type Container struct {
	Name string `json:"name"`
	ID   string `json:"id"` // the engine's id of it when the app was configured
	// Serves has the names of the databases whose server is in the container. If there are any, the container runs on in a rollback.
	Serves []string `json:"serves,omitempty"`
	Port   int      `json:"port,omitempty"` // of that server, in the container
	// Cluster is the Postgres cluster of that server, if the daemon manages its files (mode physical).
	Cluster *Cluster `json:"cluster,omitempty"`
}

// Cluster is a Postgres cluster in a volume of containers.
type Cluster struct {
	Volume  string `json:"volume"`   // the volume's name
	Folder  string `json:"folder"`   // of the volume, on the host
	Dir     string `json:"dir"`      // the cluster's data folder: Folder, or a folder below it
	DataDir string `json:"data_dir"` // the same, as the container sees it
	Major   int    `json:"major"`    // version
}

// Gap is a part of an app that cannot be captured or restored.
type Gap struct {
	Layer  string `json:"layer"`
	What   string `json:"what"`   // a whole sentence
	Remedy string `json:"remedy"` // what to do about it
	Blocks bool   `json:"blocks"` // no checkpoint can be made while it is there
}

// Health is the app's health check. Exactly one of URL and Command is set.
type Health struct {
	URL     string   `json:"url,omitempty"`
	Command []string `json:"command,omitempty"`
	Timeout string   `json:"timeout,omitempty"` // a Go duration; default 10s
}

// Retention has the rules of pruning. Pinned checkpoints are always kept.
type Retention struct {
	KeepLast    int    `json:"keep_last"`
	DailyDays   int    `json:"daily_days"`
	KeepTurns   int    `json:"keep_turns"`
	KeepSafety  int    `json:"keep_safety"`
	MaxBytes    int64  `json:"max_bytes"`    // 0: no limit
	ExpireAfter string `json:"expire_after"` // a Go duration; "0": never
}

// DefaultRetention returns the rules of an app that sets none.
func DefaultRetention() Retention {
	return Retention{KeepLast: 10, DailyDays: 7, KeepTurns: 50, KeepSafety: 10, MaxBytes: 20 << 30, ExpireAfter: "0"}
}

// UnmarshalJSON sets the default for safety checkpoints if the field is missing, as in older records and clients.
func (r *Retention) UnmarshalJSON(text []byte) error {
	type plain Retention
	p := plain{KeepSafety: DefaultRetention().KeepSafety}
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	*r = Retention(p)
	return nil
}

// Database is one database of an app.
type Database struct {
	Name   string `json:"name"`
	Driver string `json:"driver"`         // postgres, mysql, sqlite, redis
	DSN    string `json:"dsn"`            // for sqlite a path, relative to the workspace or absolute; for postgres a URL, or key=value pairs
	Mode   string `json:"mode,omitempty"` // postgres: logical, physical, auto
	// DataDir is a Postgres cluster's data folder: with it, the daemon may manage the
	// cluster's files (mode physical). Unit is the systemd unit that serves it; without
	// one the daemon starts and stops the server itself. Only root names a unit, and a
	// folder that is not the app's owner's.
	DataDir string `json:"data_dir,omitempty"`
	Unit    string `json:"unit,omitempty"`
	// Env is the variable that tells the app where the database is. Forks with IsolationPorts have one of their own there.
	Env string `json:"env,omitempty"`

	// Results of the daemon; empty in a registration. Chosen is the mode that the daemon chose for mode auto, and Why has the
	// reason in a few words.
	Chosen string `json:"chosen,omitempty"`
	Why    string `json:"why,omitempty"`
}

// AppChange is a partial update of an app: nil leaves a property unchanged.
type AppChange struct {
	// Owner confirms that the account of this name, which now has the app's uid, belongs to the same owner as before. Only root
	// may set it, at the host's daemon.
	Owner     *string     `json:"owner,omitempty"`
	Unit      *string     `json:"unit,omitempty"`
	Run       *[]string   `json:"run,omitempty"`
	Engine    *string     `json:"engine,omitempty"`
	Volumes   *[]Volume   `json:"volumes,omitempty"`
	Domain    *string     `json:"domain,omitempty"`
	URI       *string     `json:"uri,omitempty"`
	Shutdown  *string     `json:"shutdown,omitempty"`
	Auto      *bool       `json:"auto,omitempty"`
	Follow    *bool       `json:"follow,omitempty"`
	Titles    *bool       `json:"titles,omitempty"`
	Exclude   *[]string   `json:"exclude,omitempty"`
	Health    *Health     `json:"health,omitempty"`
	Retention *Retention  `json:"retention,omitempty"`
	Databases *[]Database `json:"databases,omitempty"`
	Forking   *Forking    `json:"forking,omitempty"`
	Remoting  *Remoting   `json:"remoting,omitempty"`
}

// Checkpoint is a state of the app to which it can be rolled back.
type Checkpoint struct {
	ID           CheckpointID `json:"checkpoint_id"`
	AppID        AppID        `json:"app_id"`
	Ref          *string      `json:"ref"` // the workspace's git commit
	Trigger      Trigger      `json:"trigger"`
	VMSnapshotID *string      `json:"vm_snapshot_id"`
	DBSnapshotID *string      `json:"db_snapshot_id"`
	DBSnapshots  []DBSnapshot `json:"db_snapshots"`
	// VolumeSnapshots are those of the containers' volumes.
	VolumeSnapshots []VolumeSnapshot `json:"volume_snapshots,omitempty"`
	FilesSnapshot   *string          `json:"files_snapshot_id"`
	FilesHash       *string          `json:"files_hash"`
	Quiesced        bool             `json:"quiesced"`
	Running         *bool            `json:"running"`   // the app ran when it was made; null where it has no unit, or nobody looked
	Healthy         *bool            `json:"healthy"`   // it was well then; null where nobody can tell: it has no health check, or somebody had stopped it
	Rehearsed       *bool            `json:"rehearsed"` // its databases could be restored beside the live ones when that was tried; null where nobody tried
	Pinned          bool             `json:"pinned"`
	SizeBytes       int64            `json:"size_bytes"` // what deleting it would free
	Notes           *string          `json:"notes"`
	DeployID        *string          `json:"deploy_id"`
	ConversationID  *string          `json:"conversation_id"`
	MessageID       *string          `json:"message_id"`
	TurnID          *string          `json:"turn_id"`
	Title           string           `json:"title,omitempty"` // its turn's title
	Agent           string           `json:"agent,omitempty"` // its turn's agent
	ExpiresAt       *time.Time       `json:"expires_at"`
	CreatedAt       time.Time        `json:"created_at"`
	Warnings        []string         `json:"warnings,omitempty"` // what it lacks
	// Raw names the layers whose state could not be read. The checkpoint has the raw bytes of their files.
	Raw     []string `json:"raw,omitempty"`
	Damaged string   `json:"damaged,omitempty"` // why it cannot be gone back to as it is
	// CalledOff marks the safety checkpoint of a rollback that was undone or is under way. Numbers of checkpoints do not count it,
	// and redo ignores it.
	CalledOff bool `json:"called_off,omitempty"`
	// Inferred marks a checkpoint of a turn that nobody announced.
	Inferred bool `json:"inferred,omitempty"`
	// Location says where a checkpoint of an app with remotes is: LocationHere, LocationBoth or LocationRemote. "" if the app has none.
	Location string `json:"location,omitempty"`
	// RollbackTo of the safety checkpoint of a rollback is the checkpoint that the rollback went to, and RollbackTitle what people call
	// that one: the title of its turn, or else its notes. It is empty if that checkpoint has neither, or is gone.
	RollbackTo    CheckpointID `json:"rollback_to,omitempty"`
	RollbackTitle string       `json:"rollback_title,omitempty"`
	// StayedBehind of the safety checkpoint of a completed rollback names the layers that this rollback or an earlier one left
	// unchanged, while it restored others.
	StayedBehind []string `json:"stayed_behind,omitempty"`
	// UndoTo is the checkpoint that undo goes to from this one's state, and UndoNext the
	// one that it goes to from the state that followed. "" is none; null is not known.
	UndoTo   *CheckpointID `json:"undo_to,omitempty"`
	UndoNext *CheckpointID `json:"undo_next,omitempty"`
}

// Undo and Redo stand for a checkpoint where a rollback is asked for: the one before
// the newest thing that an agent did, and the safety checkpoint of the last rollback.
const (
	Undo CheckpointID = "undo"
	Redo CheckpointID = "redo"
)

// Where a checkpoint is.
const (
	LocationHere = "here" // only on this host
	LocationBoth = "both" // on this host, and whole on a remote
	// LocationRemote is a checkpoint that this host sent to a remote and has no more.
	LocationRemote = "remote"
)

// VolumeSnapshot is the part of a checkpoint that is a volume.
type VolumeSnapshot struct {
	Volume     string `json:"volume"`
	SnapshotID string `json:"snapshot_id"`
}

// DBSnapshot is the part of a checkpoint that holds one database.
type DBSnapshot struct {
	Database   string `json:"database"`
	SnapshotID string `json:"snapshot_id"`
	Driver     string `json:"driver"`
	Position   string `json:"position"`
	Rehearsed  *bool  `json:"rehearsed"` // it could be restored beside the live one when that was tried; null where nobody tried
}

// CreateRequest is a request for a new checkpoint.
type CreateRequest struct {
	Notes    string  `json:"notes,omitempty"`
	Pinned   bool    `json:"pinned,omitempty"`
	Trigger  Trigger `json:"trigger,omitempty"` // default manual
	DeployID string  `json:"deploy_id,omitempty"`
	Quiesce  Quiesce `json:"quiesce,omitempty"`
	// WithMemory also saves the memory of the app's domain, so that a rollback resumes the guest instead of booting it.
	WithMemory bool `json:"with_memory,omitempty"`
}

// CheckpointQuery filters a list of checkpoints. Zero values do not filter; a Limit of 0 means all.
type CheckpointQuery struct {
	Trigger Trigger
	Limit   int
	Before  CheckpointID // only older ones
	// Conversation selects the checkpoints of one conversation's turns.
	Conversation string
}

// CheckpointList is a list of checkpoints, newest first.
type CheckpointList struct {
	Checkpoints []Checkpoint `json:"checkpoints"`
	// RemoteOnly are those that this host sent to remotes and has no more, newest first: they are fetched before a rollback to them.
	RemoteOnly   []Checkpoint `json:"remote_only,omitempty"`
	StorageUsage StorageUsage `json:"storage_usage"`
}

// StorageUsage is what an app's checkpoints occupy, and the rules they are kept by.
type StorageUsage struct {
	CheckpointCount int   `json:"checkpoint_count"`
	PinnedCount     int   `json:"pinned_count"`
	TotalBytes      int64 `json:"total_bytes"`
	KeepLast        int   `json:"keep_last"`
	DailyDays       int   `json:"daily_days"`
}

// RollbackRequest is a request to roll back to a checkpoint.
type RollbackRequest struct {
	Scope []string `json:"scope,omitempty"` // paths in the workspace, absolute or relative to it, and "layer:NAME"
	// Without leaves layers ("db:main", "files", "disk", "db" for all databases) as they
	// are, and does not look at them: those whose state can be neither read nor kept.
	Without []string `json:"without,omitempty"`
	// Discard names files in the workspace that were made since the checkpoint. They are
	// deleted for good before anything else: on a full disk there is no room to keep it.
	Discard       []string    `json:"discard,omitempty"`
	VerifyRestore *bool       `json:"verify_restore,omitempty"` // default true
	Reason        string      `json:"reason,omitempty"`
	DryRun        bool        `json:"dry_run,omitempty"`
	OnUnhealthy   OnUnhealthy `json:"on_unhealthy,omitempty"`
	// CheckStored has every byte that is stored for the checkpoint read and compared
	// with its hashes before anything else. Without it, that all of it is there is
	// checked first, and each byte that is needed when it is read.
	CheckStored bool `json:"check_stored,omitempty"`
	// Start starts the app at the end, or leaves it down. Without it, the app is started
	// if it was meant to be up: it ran, was starting or had failed, or it is down for no
	// known reason and ran when the checkpoint was made.
	Start *bool `json:"start,omitempty"`
	// Force goes back even where that takes along what another session's turn wrote
	// at the same time, which is errs.Conflict otherwise.
	Force bool `json:"force,omitempty"`
	// Turns is how many turns Undo takes back; default 1. For other targets it is nothing.
	Turns int `json:"turns,omitempty"`
	// IncludeOthers has Undo take along what was written in between outside of all
	// announced turns, which is errs.Conflict otherwise.
	IncludeOthers bool `json:"include_others,omitempty"`
	// ConversationID, or the call that asks, says which session is not another one.
	ConversationID string `json:"conversation_id,omitempty"`
	CallID         CallID `json:"call_id,omitempty"`
}

// StageName is one of the six stages of a rollback.
type StageName string

// The stages, in their order.
const (
	StageSafety  StageName = "safety-checkpoint"
	StageStop    StageName = "stop-unit"
	StageVM      StageName = "vm-revert" // the VM's disks and the workspace's files
	StageDB      StageName = "db-restore"
	StageStart   StageName = "start-unit"
	StageHealthy StageName = "health-check"
)

// Stages lists all six in order.
var Stages = []StageName{StageSafety, StageStop, StageVM, StageDB, StageStart, StageHealthy}

// StageStatus is the state of a stage.
type StageStatus string

// The outcomes; StageRunning is seen in events only.
const (
	StageOK      StageStatus = "ok"
	StageFailed  StageStatus = "failed"
	StageSkipped StageStatus = "skipped"
	StageRunning StageStatus = "running"
)

// Stage is one stage of a rollback.
type Stage struct {
	Stage      StageName   `json:"stage"`
	Status     StageStatus `json:"status"`
	TS         time.Time   `json:"ts"` // when it began
	DurationMS int64       `json:"duration_ms"`
	Notes      string      `json:"notes"`
}

// Change is one thing that a rollback undid.
type Change struct {
	Path      string `json:"path"`
	Operation string `json:"operation"` // create, modify, delete: what was undone, or what a turn did
	Summary   string `json:"summary"`
}

// LayerVerification is the proof for one layer, or over all of them.
type LayerVerification struct {
	PreStateHash   string `json:"pre_state_hash"`
	PostStateHash  string `json:"post_state_hash"`
	CheckpointHash string `json:"checkpoint_hash"`
	Match          bool   `json:"match"`
}

// Verification holds the proof over all layers, and each layer's own.
type Verification struct {
	LayerVerification
	Layers map[string]LayerVerification `json:"layers"`
}

// RollbackResult is the receipt of a rollback.
type RollbackResult struct {
	RolledBack       bool          `json:"rolled_back"`
	RolledBackTo     *Checkpoint   `json:"rolled_back_to"`
	RestoredTo       *Checkpoint   `json:"restored_to"`
	SafetyCheckpoint *Checkpoint   `json:"safety_checkpoint"`
	Stages           []Stage       `json:"stages"`
	ChangesReverted  []Change      `json:"changes_reverted"` // at most 100
	ChangesTotal     int           `json:"changes_total"`
	Verification     *Verification `json:"verification"` // null when it was skipped
	Recovered        bool          `json:"recovered"`    // it failed, and the app is back in its state before
	Warnings         []string      `json:"warnings"`
	NextActions      []string      `json:"next_actions"`
	Confidence       float64       `json:"confidence"`
	EvidenceAnchors  []string      `json:"evidence_anchors"`
	Assumptions      []string      `json:"assumptions"`
	Next             string        `json:"next"`
	DryRun           bool          `json:"dry_run,omitempty"`
	// DowntimeMS is how long the app was down, in milliseconds: from the request to stop it until it had started. It is null where
	// the app did not run before, was not stopped, or was not started.
	DowntimeMS *int64   `json:"downtime_ms,omitempty"`
	Scope      []string `json:"scope,omitempty"` // what it was limited to
	// StayedBehind names the layers that are as they were, though they are in the scope:
	// those of Without, and those that the checkpoint holds nothing of.
	StayedBehind []string   `json:"stayed_behind,omitempty"`
	PutBack      []string   `json:"put_back,omitempty"` // where it was undone: a line per layer
	Preview      *Preview   `json:"preview,omitempty"`  // of a dry run
	Error        *ErrorBody `json:"error,omitempty"`    // why rolled_back is false
}

// Preview is the result of a dry run.
type Preview struct {
	Layers     []LayerPreview `json:"layers"`
	NotCovered []string       `json:"not_covered"` // what would stay as it is
	StopsUnit  bool           `json:"stops_unit"`
	// DowntimeMS is how long the app would be down, in milliseconds; null where
	// nothing is known. DowntimeFrom says what it rests on.
	DowntimeMS   *int64 `json:"downtime_ms"`
	DowntimeFrom string `json:"downtime_from"`
}

// LayerPreview counts what a rollback would undo in a layer: what was created,
// modified and deleted since. Changes are at most 100.
type LayerPreview struct {
	Layer   string   `json:"layer"`
	Create  int      `json:"create"`
	Modify  int      `json:"modify"`
	Delete  int      `json:"delete"`
	Changes []Change `json:"changes"`
}

// PruneResult lists what pruning deleted, or would delete.
type PruneResult struct {
	Deleted  []CheckpointID `json:"deleted"`
	Kept     int            `json:"kept"`
	Warnings []string       `json:"warnings,omitempty"`
}

// VerifyResult is the result of a verification of a checkpoint.
type VerifyResult struct {
	CheckpointID CheckpointID    `json:"checkpoint_id"`
	OK           bool            `json:"ok"`
	Problems     []VerifyProblem `json:"problems"`
	Warnings     []string        `json:"warnings,omitempty"` // what was not checked
}

// VerifyProblem is one fault that a verification found.
type VerifyProblem struct {
	Layer   string `json:"layer"`
	Message string `json:"message"`
}

// AppList is the answer to a listing of apps.
type AppList struct {
	Apps []App `json:"apps"`
}

// AuditList is the answer to a reading of the audit trail, newest first.
type AuditList struct {
	Entries []AuditEntry `json:"entries"`
	// Check is the outcome of a verification, where one was asked for.
	Check *AuditCheck `json:"check,omitempty"`
}

// AuditCheck says whether the audit trail is what was written. Each entry's hash
// covers the one before it, over all apps of the daemon.
type AuditCheck struct {
	OK      bool   `json:"ok"`
	Entries int64  `json:"entries"` // of all apps, up to the first that is wrong
	Head    string `json:"head"`    // the last hash: note it, and a trail cut short shows too
	Problem string `json:"problem,omitempty"`
}

// AuditEntry is one line of the audit trail.
type AuditEntry struct {
	Seq    int64           `json:"seq"`
	At     time.Time       `json:"at"`
	AppID  AppID           `json:"app_id"`
	Actor  string          `json:"actor"`  // "alice (pid 812, mulligan)"
	Action string          `json:"action"` // create, rollback, pin, …
	Target string          `json:"target"` // a checkpoint's id, mostly
	Reason string          `json:"reason,omitempty"`
	Result string          `json:"result"`           // ok, or the kind of the error
	Detail json.RawMessage `json:"detail,omitempty"` // a rollback's receipt, and the like
}

// Status is the state of the daemon.
type Status struct {
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	Mode      string    `json:"mode"` // host or user
	Socket    string    `json:"socket"`
	HTTP      string    `json:"http,omitempty"` // the address of TCP, where it is served
	StateDir  string    `json:"state_dir"`
	StartedAt time.Time `json:"started_at"`
	Apps      int       `json:"apps"`
	// StoreBytes is what the content stores occupy on disk: the asker's own, or for root all.
	StoreBytes int64 `json:"store_bytes"`
	// Recovered says what start-up finished or undid after a crash.
	Recovered []string `json:"recovered"`
	Problems  []string `json:"problems"`
}

// Event is one event of an app's live feed, or of a rollback's stream.
type Event struct {
	Name string          // "stage", "result", "error", "checkpoint", …
	Data json.RawMessage // a Stage, a RollbackResult, an ErrorBody, …
}
