// Package s3store puts objects into a bucket of an S3-compatible server, and reads them. It never overwrites an object.
package s3store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"mulligan/errs"
)

// Config says where the objects are, and who reads and writes them.
type Config struct {
	Bucket string
	Prefix string // of the names of all objects; without slashes at either end
	// Endpoint is the URL of the server; "" is that of AWS.
	Endpoint string
	Region   string // "" asks the server
	// Credentials are asked at each request; nil is the environment and the usual AWS files.
	Credentials *credentials.Credentials
	// Wait bounds each try of a request, beside the time that its bytes take at 64 KiB/s: 1 minute if 0.
	Wait time.Duration
	// Tries is how often a request is tried: 5 if 0.
	Tries int
	// Dial connects to the server; nil is as this process can.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Pause is the pause before the second try, which doubles each time: 200 ms if 0. The pauses vary by half.
	Pause time.Duration
}

// Store is a bucket, below a prefix. Safe for concurrent use.
type Store struct {
	cfg      Config
	client   *minio.Client
	requests atomic.Int64
	sent     atomic.Int64
	received atomic.Int64
}

// Usage counts what a Store asked of its server.
type Usage struct {
	Requests       int64 // tries that failed included
	Sent, Received int64 // bytes of objects
}

// Object is what a server says of an object.
type Object struct {
	Name string // without the prefix
	Size int64
}

// slowest is the least number of bytes a second at which objects are waited for, and usual the size for which a get waits.
const (
	slowest = 64 << 10
	usual   = 16 << 20
)

// maxObject bounds what is read of one object, in bytes: a server that sends more than was ever stored fills no memory.
const maxObject = 256 << 20

// Open returns the store. It sends no request.
func Open(cfg Config) (*Store, error) {
	const op = "open the remote"
	host, secure := "s3.amazonaws.com", true
	if cfg.Endpoint != "" {
		u, err := url.Parse(cfg.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.User != nil {
			return nil, errs.New(errs.Invalid, op, "%.200q is not the URL of an S3 server", cfg.Endpoint).WithHint("an endpoint is like https://s3.example.com")
		}
		host, secure = u.Host, u.Scheme == "https"
	}
	if cfg.Wait == 0 {
		cfg.Wait = time.Minute
	}
	if cfg.Tries == 0 {
		cfg.Tries = 5
	}
	if cfg.Pause == 0 {
		cfg.Pause = 200 * time.Millisecond
	}
	if cfg.Credentials == nil {
		cfg.Credentials = credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}})
	}
	s := &Store{cfg: cfg}
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if cfg.Dial != nil {
		transport.DialContext = cfg.Dial
	}
	s.client, err = minio.New(host, &minio.Options{
		Creds: cfg.Credentials, Secure: secure, Region: cfg.Region, Transport: counter{s, transport},
		MaxRetries: 1, // try tries again, and knows what may be repeated
	})
	if err != nil {
		return nil, &errs.Error{Kind: errs.Invalid, Op: op, Message: "the remote cannot be used", Err: err}
	}
	return s, nil
}

// counter counts requests.
type counter struct {
	s    *Store
	next http.RoundTripper
}

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.s.requests.Add(1)
	return c.next.RoundTrip(r)
}

// Usage returns what was asked of the server since Open.
func (s *Store) Usage() Usage {
	return Usage{s.requests.Load(), s.sent.Load(), s.received.Load()}
}

// String returns the store's URL.
func (s *Store) String() string {
	return strings.TrimSuffix("s3://"+s.cfg.Bucket+"/"+s.cfg.Prefix, "/")
}

func (s *Store) path(name string) string {
	if s.cfg.Prefix == "" {
		return name
	}
	return s.cfg.Prefix + "/" + name
}

// PutNew stores data as the object name. If there is such an object already, the error is of kind errs.Conflict and nothing
// changes, unless that object is exactly data: then an earlier try was answered, and the answer was lost. So data must be
// unique, as sealed data is.
func (s *Store) PutNew(ctx context.Context, name string, data []byte) error {
	op := "put " + name
	err := s.try(ctx, op, int64(len(data)), func(ctx context.Context) error {
		opts := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true,
			SendContentMd5: true, // AWS wants it where objects are locked
		}
		opts.SetMatchETagExcept("*") // If-None-Match: *
		_, err := s.client.PutObject(ctx, s.cfg.Bucket, s.path(name), bytes.NewReader(data), int64(len(data)), opts)
		if err == nil {
			s.sent.Add(int64(len(data)))
		}
		return err
	})
	if errs.KindOf(err) != errs.Conflict {
		return err
	}
	there, readErr := s.Get(ctx, name)
	if readErr != nil {
		return readErr
	}
	if bytes.Equal(there, data) {
		return nil
	}
	return err
}

// Get returns the content of an object. The error is of kind errs.NotFound if there is none.
func (s *Store) Get(ctx context.Context, name string) (data []byte, err error) {
	err = s.try(ctx, "get "+name, usual, func(ctx context.Context) error {
		o, err := s.client.GetObject(ctx, s.cfg.Bucket, s.path(name), minio.GetObjectOptions{})
		if err != nil {
			return err
		}
		defer o.Close()
		if data, err = io.ReadAll(io.LimitReader(o, maxObject+1)); err != nil {
			return err
		}
		s.received.Add(int64(len(data)))
		if len(data) > maxObject {
			return errs.New(errs.Corrupt, "", "the object is larger than any that mulligan stores")
		}
		return nil
	})
	return data, err
}

// List returns the objects whose names begin with prefix and come after the name after, in the order of their names.
func (s *Store) List(ctx context.Context, prefix, after string) (list []Object, err error) {
	opts := minio.ListObjectsOptions{Prefix: s.path(prefix), Recursive: true}
	if after != "" {
		opts.StartAfter = s.path(after)
	}
	err = s.list(ctx, opts, func(o minio.ObjectInfo) {
		list = append(list, Object{strings.TrimPrefix(o.Key, s.path("")), o.Size})
	}, func() { list = nil })
	return list, err
}

// Folders returns the first parts of the names of all objects that have a slash.
func (s *Store) Folders(ctx context.Context) (list []string, err error) {
	err = s.list(ctx, minio.ListObjectsOptions{Prefix: s.path("")}, func(o minio.ObjectInfo) {
		if name, ok := strings.CutSuffix(strings.TrimPrefix(o.Key, s.path("")), "/"); ok {
			list = append(list, name)
		}
	}, func() { list = nil })
	return list, err
}

func (s *Store) list(ctx context.Context, opts minio.ListObjectsOptions, each func(minio.ObjectInfo), reset func()) error {
	return s.try(ctx, "list the remote", 0, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx) // else the goroutine of a list that is left early stays
		defer cancel()
		reset()
		for o := range s.client.ListObjects(ctx, s.cfg.Bucket, opts) {
			if o.Err != nil {
				return o.Err
			}
			each(o)
		}
		return ctx.Err()
	})
}

// Stat returns what the server says of an object. The error is of kind errs.NotFound if there is none.
func (s *Store) Stat(ctx context.Context, name string) (o Object, err error) {
	err = s.try(ctx, "look at "+name, 0, func(ctx context.Context) error {
		info, err := s.client.StatObject(ctx, s.cfg.Bucket, s.path(name), minio.StatObjectOptions{})
		o = Object{name, info.Size}
		return err
	})
	return o, err
}

// Delete deletes an object. An object that does not exist is no error.
func (s *Store) Delete(ctx context.Context, name string) error {
	return s.try(ctx, "delete "+name, 0, func(ctx context.Context) error {
		return s.client.RemoveObject(ctx, s.cfg.Bucket, s.path(name), minio.RemoveObjectOptions{})
	})
}

// Locks reports whether the bucket locks new objects for a time, so that nobody can delete them.
func (s *Store) Locks(ctx context.Context) (locks bool, err error) {
	err = s.try(ctx, "ask for the bucket's object lock", 0, func(ctx context.Context) error {
		_, mode, _, _, err := s.client.GetObjectLockConfig(ctx, s.cfg.Bucket)
		locks = err == nil && mode != nil
		return err
	})
	switch errs.KindOf(err) {
	case errs.NotFound, errs.Failed, errs.Denied: // there is none, or the server does not know what that is, or the key may not ask
		return false, nil
	}
	return locks, err
}

// Versions reports whether the bucket keeps what is deleted or overwritten, as an older version.
func (s *Store) Versions(ctx context.Context) (keeps bool, err error) {
	err = s.try(ctx, "ask for the bucket's versioning", 0, func(ctx context.Context) error {
		v, err := s.client.GetBucketVersioning(ctx, s.cfg.Bucket)
		keeps = err == nil && v.Enabled()
		return err
	})
	switch errs.KindOf(err) {
	case errs.NotFound, errs.Failed, errs.Denied: // the server does not know what that is, or the key may not ask
		return false, nil
	}
	return keeps, err
}

// try calls f until it succeeds, fails for good, or was tried often enough. size is the number of bytes that f sends or receives.
func (s *Store) try(ctx context.Context, op string, size int64, f func(context.Context) error) error {
	pause := s.cfg.Pause
	for i := 1; ; i++ {
		err := s.once(ctx, size, f)
		if err == nil {
			return nil
		}
		known, again := classify(err)
		if known.Op == "" {
			known.Op = op
		}
		if ctx.Err() != nil {
			return errs.Wrap(errs.Unavailable, op, ctx.Err())
		}
		if !again || i >= s.cfg.Tries {
			return known
		}
		t := time.NewTimer(pause/2 + rand.N(pause)) // not drawn from a test's seed: no result depends on it
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		pause *= 2
	}
}

func (s *Store) once(ctx context.Context, size int64, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Wait+time.Duration(size)*time.Second/slowest)
	defer cancel()
	return f(ctx)
}

// classify returns err as one of mulligan's, and whether another try may succeed.
func classify(err error) (known *errs.Error, again bool) {
	if errors.As(err, &known) {
		return &errs.Error{Kind: known.Kind, Op: known.Op, Message: known.Message, Hint: known.Hint, Err: known.Err}, false
	}
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) || answer.StatusCode == 0 && answer.Code == "" {
		return &errs.Error{Kind: errs.Unavailable, Message: "the remote's server does not answer", Err: err,
			Hint: "nothing needs to be done: what is not sent yet is sent when it answers"}, true
	}
	e := &errs.Error{Kind: errs.Failed, Message: "the remote's server answered " + answerText(answer)}
	switch status := answer.StatusCode; {
	case answer.Code == "PreconditionFailed" || status == http.StatusPreconditionFailed:
		e.Kind, e.Message = errs.Conflict, "there is such an object already"
	case answer.Code == "ConditionalRequestConflict" || status == http.StatusConflict:
		return e, true
	case answer.Code == "NoSuchKey":
		e.Kind, e.Message = errs.NotFound, "there is no such object on the remote"
	case answer.Code == "NoSuchBucket":
		e.Kind, e.Hint = errs.NotFound, "make the bucket, or correct its name"
	case answer.Code == "RequestTimeTooSkewed":
		e.Kind, e.Hint = errs.Unavailable, "set this host's clock: it differs from the server's by more than the server allows"
	case answer.Code == "QuotaExceeded" || status == http.StatusInsufficientStorage:
		e.Kind, e.Hint = errs.Unavailable, "make room there: what is not sent yet is sent when there is some"
	case status == http.StatusForbidden || status == http.StatusUnauthorized || answer.Code == "XAdminUserNotFound":
		e.Kind, e.Hint = errs.Denied, "check the key, and what it may do in this bucket"
	case status == http.StatusNotFound:
		e.Kind = errs.NotFound
	case status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout:
		e.Kind = errs.Unavailable
		e.Hint = "nothing needs to be done: what is not sent yet is sent when the server is well"
		return e, true
	}
	return e, false
}

func answerText(a minio.ErrorResponse) string {
	text := fmt.Sprint(a.StatusCode)
	if a.Code != "" {
		text += " " + a.Code
	}
	if a.Message != "" {
		text += fmt.Sprintf(" (%.200s)", a.Message)
	}
	return text
}
