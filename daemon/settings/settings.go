// Package settings says how a daemon runs: where it keeps things, what it allows, and
// how long it waits. mulligand's configuration becomes Options, and so does a test's.
package settings

import (
	"log/slog"
	"net/http"
	"time"

	"mulligan/failpoint"
)

// Options says how a daemon runs.
type Options struct {
	StateDir    string        // the daemon's own folder, absolute
	Socket      string        // shown by status
	User        bool          // serves one user's projects, without privilege
	Version     string        // shown by status
	StopTimeout time.Duration // how long a unit may take to stop; default 30 s
	MaxFiles    int64         // largest workspace; 0: the files driver's default
	MaxBytes    int64
	Steady      time.Duration // how long a unit without a health check is watched after a rollback; default 1 s
	QuietGap    time.Duration // after which a write begins a turn that nobody announced; default 60 s
	RehearseMax int64         // bytes; larger databases are not rehearsed: 0 is none
	UpkeepEvery time.Duration // between looks after what drivers do in the background; default 5 s
	BusAddress  string        // of systemd's D-Bus; default the system's or the user's
	BusRoot     string        // where this process sees systemd's root folder; default /
	Log         *slog.Logger

	Guests      *Guests      // nil: there are none
	UserLimits  Limits       // of each owner but root
	GuestLimits Limits       // of each guest
	Hosts       []string     // names that TCP is reached by, beside its address
	Page        http.Handler // the web page's own files; nil: there is none

	Now       func() time.Time // the clock
	Failpoint failpoint.Hook   // for tests: called ahead of each step that lasts
}

// SetDefaults fills in what was left out.
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
	if o.UpkeepEvery == 0 {
		o.UpkeepEvery = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Guests says whether there are guests, and what they have to work with.
type Guests struct {
	User string // whose rights their apps run with: not root's
	Dir  string // each guest's folders are below Dir/ID
}

// Limits are what one owner may have, and how much one caller may ask for. 0 is
// no limit.
type Limits struct {
	Apps        int     // registered, and removed ones whose checkpoints are kept
	Checkpoints int     // of all its apps
	Bytes       int64   // that they occupy
	Rate        float64 // requests a second; ten times as many at once
	Concurrent  int     // requests under way, event streams among them
}
