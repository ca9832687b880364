// Package s3test runs an S3 server for tests: versitygw, over a folder.
package s3test

import (
	"bytes"
	"context"
	"fmt"
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
	port    int
	cmd     *exec.Cmd
	log     *bytes.Buffer
}

// Start starts a server with an empty bucket, and stops it when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		program: testkit.GoTool(t, "github.com/versity/versitygw/cmd/versitygw", "v1.8.0", 90),
		dir:     t.TempDir(), port: testkit.Port(t),
	}
	s.Endpoint = fmt.Sprintf("http://127.0.0.1:%d", s.port)
	s.Up(t)
	t.Cleanup(func() { s.Kill(t) })
	c, err := minio.New(strings.TrimPrefix(s.Endpoint, "http://"), &minio.Options{Creds: credentials.NewStaticV4(Key, Secret, ""), Region: "us-east-1"})
	if err == nil {
		err = c.MakeBucket(t.Context(), Bucket, minio.MakeBucketOptions{})
	}
	if err != nil {
		t.Fatalf("make a bucket: %v\n%s", err, s.log)
	}
	return s
}

// Up starts the server again, with the objects that it had.
func (s *Server) Up(t testing.TB) {
	t.Helper()
	s.log = &bytes.Buffer{}
	s.cmd = exec.Command(s.program, "--port", fmt.Sprintf("127.0.0.1:%d", s.port), "--health", "/healthz", "posix", s.dir)
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+Key, "ROOT_SECRET_KEY="+Secret)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := testkit.Start(s.cmd); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
