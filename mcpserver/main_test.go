package mcpserver

import (
	"context"
	"fmt"
	"os"
	"testing"

	"mulligan/ipc"
)

// serveEnv makes this test binary an MCP server on standard input and output,
// over a scripted daemon, for tests with clients that start their server.
const serveEnv = "MCPSERVER_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) == "" {
		os.Exit(m.Run())
	}
	if err := serveScript(os.Getenv(serveEnv)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serveScript serves the app in dir until standard input ends.
func serveScript(dir string) error {
	sockDir, err := os.MkdirTemp(dir, "") // the test removes dir: a client may kill its server
	if err != nil {
		return err
	}
	s := newScript(dir)
	for range 3 {
		s.add(ipc.CreateRequest{Notes: "made by the test"})
	}
	socket, stop, err := s.listen(sockDir)
	if err != nil {
		return err
	}
	if err := Run(context.Background(), Options{Client: ipc.NewClient(socket), Cwd: dir, Version: "0.0.0-test"}); err != nil {
		return err
	}
	return stop()
}
