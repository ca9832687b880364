package offsite

import (
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"mulligan/daemon/accounts"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/remote/s3store"
)

// Whoever names a server has the daemon connect to it. So a connection with credentials that a user gave is made in a process that is
// this user: it leads nowhere where the user could not go, whatever the host's rules for users are. The daemon's own credentials are
// used for nothing but the bucket and the server that its configuration names beside them, for root and for the users named there.

// use is what a bucket is opened for.
type use struct {
	keys *store.Keys                // nil: the daemon's own
	as   privsep.User               // who connects with keys
	may  func(settings.Bucket) bool // whether the daemon's own may be used
	soon bool                       // somebody waits to hear whether the server answers at all
}

// A server that is asked for the first time is waited for briefly, each time that it is tried, and tried briefly.
const (
	soonWait  = 10 * time.Second
	soonTries = 2
)

// open returns the bucket of a place.
func (s *Service) open(p ipc.RemotePlace, u use) (*s3store.Store, error) {
	const op = "open the remote"
	bucket, prefix, err := s3store.ParseURL(p.URL)
	if err != nil {
		return nil, err
	}
	cfg := s3store.Config{Bucket: bucket, Prefix: prefix, Endpoint: p.Endpoint, Region: p.Region, Pause: s.opt.UpkeepEvery / 25}
	if u.soon {
		cfg.Wait, cfg.Tries = soonWait, soonTries
	}
	if u.keys != nil {
		cfg.Credentials = credentials.NewStaticV4(u.keys.Access, u.keys.Secret, u.keys.Session)
		if !u.as.IsSelf() {
			cfg.Dial = u.as.Dial
		}
		return s3store.Open(cfg)
	}
	i := slices.IndexFunc(s.opt.Buckets, func(b settings.Bucket) bool { return within(p, b) && u.may(b) })
	if i < 0 {
		return nil, errs.New(errs.Denied, op, "no credentials for %s were given, and the daemon has none that may be used for it", p.URL).
			WithHint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ask an administrator for a [[bucket]] in mulligand.toml with your name in users")
	}
	b := s.opt.Buckets[i]
	cfg.Endpoint, cfg.Region, cfg.Credentials = b.Endpoint, b.Region, credentials.NewStaticV4(b.AccessKey, b.SecretKey, "")
	return s3store.Open(cfg)
}

// within reports whether a place is in a bucket of the configuration.
func within(p ipc.RemotePlace, b settings.Bucket) bool {
	bucket, prefix, err := s3store.ParseURL(p.URL)
	top, below, err2 := s3store.ParseURL(b.URL)
	if err != nil || err2 != nil || bucket != top || p.Endpoint != "" && strings.TrimSuffix(p.Endpoint, "/") != strings.TrimSuffix(b.Endpoint, "/") {
		return false
	}
	return below == "" || prefix == below || strings.HasPrefix(prefix, below+"/")
}

// useBy is what a bucket may be used for by a caller.
func (s *Service) useBy(who ipc.Caller, keys *store.Keys) use {
	name, err := s.apps.CallerName(who)
	return use{keys: keys, as: s.apps.CallerAccount(who).User(), may: func(b settings.Bucket) bool {
		return s.apps.Administers(who) || err == nil && who.Guest == "" && slices.Contains(b.Users, name)
	}}
}

// useFor is what the bucket of a remote may be used for, in the background.
func (s *Service) useFor(rec store.App, r store.Remote) (use, error) {
	u := use{keys: r.Keys, as: privsep.Self, may: func(b settings.Bucket) bool {
		return s.opt.User || r.ByRoot || rec.OwnerUID == 0 || slices.Contains(b.Users, rec.Owner)
	}}
	acc, err := s.apps.AccountOf(rec)
	if err == nil && !r.ByRoot {
		u.as = acc.User()
	}
	return u, err
}

// keysOf returns the keys of a request, or nil if it has none.
func keysOf(k ipc.BucketKeys) (*store.Keys, error) {
	switch {
	case k == ipc.BucketKeys{}:
		return nil, nil
	case k.AccessKey == "" || k.SecretKey == "":
		return nil, errs.New(errs.Invalid, "", "an access key and its secret key go together").WithHint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY both")
	}
	return &store.Keys{Access: k.AccessKey, Secret: k.SecretKey, Session: k.SessionToken}, nil
}

// checkCaller refuses callers who may have no remotes.
func checkCaller(who ipc.Caller, rec *store.App) error {
	guest := who.Guest != ""
	if rec != nil {
		_, owned := accounts.GuestOf(*rec)
		guest = guest || owned
	}
	if guest {
		return errs.New(errs.Denied, "", "guests' apps have no remotes").WithHint("ask an administrator to register the app for a user of the host")
	}
	return nil
}
