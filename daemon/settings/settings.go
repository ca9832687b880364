// Package settings has the options of a daemon: its folders, limits and timeouts.
package settings

import (
	"log/slog"
	"net/http"
	"time"

	"mulligan/failpoint"
)

// Options are the settings of a daemon.
type Options struct {
	StateDir    string        // the daemon's own folder, absolute
	Socket      string        // status shows it
	User        bool          // the daemon serves one user's projects, without privilege
	Version     string        // shown by status
	StopTimeout time.Duration // how long a unit may take to stop; default 30 s
	Engines     time.Duration // how long a container engine may take to say something; default 30 s
	MaxFiles    int64         // limit of a workspace; 0 is the default of the files driver
	MaxForks    int           // forks of an app; 0 means no limit
	MaxBytes    int64
	Steady      time.Duration // how long a unit without a health check is watched after a rollback; default 1 s
	QuietGap    time.Duration // after which a write begins a turn that nobody announced; default 60 s
	Silence     time.Duration // after which an announced turn ends whose end nobody told; default defaultSilence
	AgentWait   time.Duration // how long an agent waits at most until its turn's begin is exact; default 250 ms
	NoTitles    bool          // no app keeps the first words of prompts
	RehearseMax int64         // bytes; larger databases are not rehearsed: 0 is none
	Watches     int64         // of folders, that apps without automatic checkpoints have together; default half of those that the kernel allows; negative: they are not followed
	Notes       int           // apps without automatic checkpoints whose changes are noted, unless their settings ask for it; default mostNotes
	StartWait   time.Duration // how long a start waits for the apps to be ready before anybody is answered; default 10 s
	UpkeepEvery time.Duration // between looks after what drivers do in the background; default 5 s
	ExpireEvery time.Duration // between looks for forks that nobody touched for long; default 1 min
	CompareTime time.Duration // how long the end of a turn may compare the databases, during which nothing else is done to the app; default 5 s
	BusAddress  string        // of systemd's D-Bus; default the system's or the user's
	BusRoot     string        // where this process sees systemd's root folder; default /
	Log         *slog.Logger

	Ceph        Ceph         // for domains whose disks are on Ceph
	Buckets     []Bucket     // with credentials of the daemon's own
	Guests      *Guests      // nil: there are none
	UserLimits  Limits       // of each owner but root
	GuestLimits Limits       // of each guest
	Hosts       []string     // host names of the TCP address, beside the address itself
	Page        http.Handler // the web page's own files; nil: there is none

	Now       func() time.Time // the clock
	Failpoint failpoint.Hook   // for tests: called ahead of each step that lasts
}

// mostNotes is a quarter of the inotify instances that the kernel lets one user have by default: systemd and containers need some too.
const mostNotes = 32

// defaultSilence is longer than a person is away while an agent waits for an answer, and than a command runs that writes nothing.
const defaultSilence = 8 * time.Hour

// SetDefaults sets the options that are zero to their defaults.
func (o *Options) SetDefaults() {
	if o.StopTimeout == 0 {
		o.StopTimeout = 30 * time.Second
	}
	if o.Steady == 0 {
		o.Steady = time.Second
	}
	if o.QuietGap == 0 {
		o.QuietGap = 60 * time.Second
	}
	if o.Silence == 0 {
		o.Silence = defaultSilence
	}
	if o.AgentWait == 0 {
		o.AgentWait = 250 * time.Millisecond
	}
	if o.Notes == 0 {
		o.Notes = mostNotes
	}
	if o.StartWait == 0 {
		o.StartWait = 10 * time.Second
	}
	if o.UpkeepEvery == 0 {
		o.UpkeepEvery = 5 * time.Second
	}
	if o.ExpireEvery == 0 {
		o.ExpireEvery = time.Minute
	}
	if o.CompareTime == 0 {
		o.CompareTime = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Bucket is a bucket of an S3-compatible server, or a part of one, for which the daemon has credentials of its own. Root may use it for
// the remotes of apps, and so may the users that are named.
type Bucket struct {
	URL       string // s3://BUCKET/PREFIX
	Endpoint  string // URL of the server; "": AWS
	Region    string
	AccessKey string
	SecretKey string
	Users     []string
}

// Ceph is how the daemon reaches Ceph clusters. What is empty is taken from a domain's definition, and else from Ceph's own defaults.
type Ceph struct {
	Conf    string // path of ceph.conf
	User    string // of cephx, without "client."
	Keyring string // path of the keyring with the user's key
}

// Guests are the settings for guests.
type Guests struct {
	User string // the user whose rights guests' apps run with; not root
	Dir  string // each guest's folders are below Dir/ID
}

// Limits bound what one owner may have and how much one caller may request. 0 means no limit.
type Limits struct {
	Apps        int     // registered apps, and removed apps whose checkpoints are kept
	Checkpoints int     // of all apps of the owner
	Bytes       int64   // that the checkpoints occupy
	Rate        float64 // requests per second; bursts of ten times as many
	Concurrent  int     // concurrent requests, including event streams
}
