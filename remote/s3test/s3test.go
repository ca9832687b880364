// Package s3test runs S3 servers for tests: versitygw, over a folder, or Ceph's gateway, on a cluster.
package s3test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"mulligan/snap/disk/cephtest"
	"mulligan/testkit"
)

// The keys of the server's only account, and the bucket that Start makes.
const (
	Key    = "AKTESTTESTTESTTEST"
	Secret = "secret-of-the-test-account"
	Bucket = "bucket"
)

// Server is a running server.
type Server struct {
	Endpoint string // its URL

	program string
	dir     string
	old     string // the folder of objects' older versions; "": there are none
	port    int
	cmd     *exec.Cmd
	log     *bytes.Buffer
	gateway *cephtest.Gateway // nil: it is versitygw
}

// Start starts a server with an empty bucket, and stops it when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, &Server{dir: t.TempDir()}, minio.MakeBucketOptions{})
}

// StartIn is Start for a server that keeps its objects in the folder dir, which is empty.
func StartIn(t testing.TB, dir string) *Server {
	t.Helper()
	return start(t, &Server{dir: dir}, minio.MakeBucketOptions{})
}

// StartLocked is Start for a bucket that locks each new object for a day: whoever may bypass governance can still delete it.
func StartLocked(t testing.TB) *Server {
	t.Helper()
	s := start(t, &Server{dir: t.TempDir(), old: t.TempDir()}, minio.MakeBucketOptions{ObjectLocking: true})
	s.lock(t)
	return s
}

// OnCeph is Start for the gateway of the process's Ceph, for tests that are not parallel: it has one bucket at a time.
func OnCeph(t testing.TB) *Server {
	t.Helper()
	return onCeph(t, minio.MakeBucketOptions{})
}

// LockedOnCeph is StartLocked for the gateway of the process's Ceph.
func LockedOnCeph(t testing.TB) *Server {
	t.Helper()
	s := onCeph(t, minio.MakeBucketOptions{ObjectLocking: true})
	s.lock(t)
	return s
}

func onCeph(t testing.TB, o minio.MakeBucketOptions) *Server {
	t.Helper()
	g := cephtest.Running(t).Gateway(t, Key, Secret)
	s := &Server{gateway: g, Endpoint: g.Endpoint}
	if err := s.client(t).MakeBucket(t.Context(), Bucket, o); err != nil {
		t.Fatalf("make a bucket: %v", err)
	}
	t.Cleanup(func() { g.Admin(t, "bucket rm --bucket "+Bucket+" --purge-objects --bypass-gc --yes-i-really-mean-it") })
	return s
}

// lock has the bucket lock each new object for a day.
func (s *Server) lock(t testing.TB) {
	t.Helper()
	mode, days, unit := minio.Governance, uint(1), minio.Days
	if err := s.client(t).SetObjectLockConfig(t.Context(), Bucket, &mode, &days, &unit); err != nil {
		t.Fatalf("lock the bucket: %v", err)
	}
}

func (s *Server) client(t testing.TB) *minio.Client {
	t.Helper()
	c, err := minio.New(strings.TrimPrefix(s.Endpoint, "http://"), &minio.Options{Creds: credentials.NewStaticV4(Key, Secret, ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func start(t testing.TB, s *Server, o minio.MakeBucketOptions) *Server {
	t.Helper()
	s.program, s.port = testkit.GoTool(t, "github.com/versity/versitygw", "cmd/versitygw", "v1.8.0", 90), testkit.Port(t)
	s.Endpoint = fmt.Sprintf("http://127.0.0.1:%d", s.port)
	s.Up(t)
	t.Cleanup(func() { s.Kill(t) })
	if err := s.client(t).MakeBucket(t.Context(), Bucket, o); err != nil {
		t.Fatalf("make a bucket: %v\n%s", err, s.log)
	}
	return s
}

// Up starts the server again, with the objects that it had.
func (s *Server) Up(t testing.TB) {
	t.Helper()
	if s.gateway != nil {
		s.gateway.Up(t)
		return
	}
	s.log = &bytes.Buffer{}
	args := []string{"--port", fmt.Sprintf("127.0.0.1:%d", s.port), "--health", "/healthz", "posix"}
	if s.old != "" {
		args = append(args, "--versioning-dir", s.old)
	}
	s.cmd = exec.Command(s.program, append(args, s.dir)...)
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+Key, "ROOT_SECRET_KEY="+Secret)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := testkit.Start(s.cmd); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("versitygw does not answer:\n%s", s.log)
		}
		time.Sleep(20 * time.Millisecond) // the server says nothing when it is ready
	}
}

// Kill ends the server as a power cut would.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.gateway != nil {
		s.gateway.Kill()
		return
	}
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Files returns the paths of the files in which the bucket's objects are, sorted.
func (s *Server) Files(t testing.TB) (list []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(s.dir, Bucket), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Objects returns the names of the bucket's objects, sorted.
func (s *Server) Objects(t testing.TB) (list []string) {
	t.Helper()
	for o := range s.client(t).ListObjects(t.Context(), Bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		list = append(list, o.Key)
	}
	return list
}

// Read returns the bytes of an object.
func (s *Server) Read(t testing.TB, name string) []byte {
	t.Helper()
	o, err := s.client(t).GetObject(t.Context(), Bucket, name, minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	data, err := io.ReadAll(o)
	if err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return data
}

// Write replaces an object, or makes it.
func (s *Server) Write(t testing.TB, name string, data []byte) {
	t.Helper()
	_, err := s.client(t).PutObject(t.Context(), Bucket, name, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{DisableMultipart: true, DisableContentSha256: true})
	if err != nil {
		t.Fatalf("write %s: %v", name, err)
	}
}

// Remove removes an object.
func (s *Server) Remove(t testing.TB, name string) {
	t.Helper()
	if err := s.client(t).RemoveObject(t.Context(), Bucket, name, minio.RemoveObjectOptions{}); err != nil {
		t.Fatalf("remove %s: %v", name, err)
	}
}

// Quota bounds what the bucket of a gateway holds, in bytes.
func (s *Server) Quota(t testing.TB, size int64) {
	t.Helper()
	s.gateway.Admin(t, fmt.Sprintf("quota set --quota-scope bucket --bucket %s --max-size %d", Bucket, size))
	s.gateway.Admin(t, "quota enable --quota-scope bucket --bucket "+Bucket)
}

// Appender returns the key of another user of a gateway, who can put, get and list what is in the bucket, and not delete it.
func (s *Server) Appender(t testing.TB) (key, secret string) {
	t.Helper()
	key, secret = "AKAPPENDERAPPENDER", "secret-of-who-appends"
	s.gateway.User(t, "appender", key, secret)
	policy := fmt.Sprintf(`{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam:::user/appender"]},
		"Action": ["s3:PutObject", "s3:GetObject", "s3:ListBucket"], "Resource": ["arn:aws:s3:::%[1]s", "arn:aws:s3:::%[1]s/*"]}]}`, Bucket)
	if err := s.client(t).SetBucketPolicy(t.Context(), Bucket, policy); err != nil {
		t.Fatalf("let another user append: %v", err)
	}
	return key, secret
}
