package main

import (
	"context"
	"os"
	"os/exec"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"

	"mulligan/ipc"
	"mulligan/testkit"
)

// serve starts mulligan mcp with some flags, as an agent does, and returns a function that calls one of its tools.
func serve(ctx context.Context, ts *testscript.TestScript, flags ...string) (call func(tool string) (text string, failed bool), stop func()) {
	bin, err := exec.LookPath("mulligan")
	ts.Check(err)
	cmd := exec.Command(bin, append([]string{"mcp"}, flags...)...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = os.Environ()
	for _, name := range []string{"HOME", "PATH", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	ts.Check(err)
	return func(tool string) (string, bool) {
		res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: map[string]any{}})
		ts.Check(err)
		var all strings.Builder
		for _, c := range res.Content {
			if text, ok := c.(*mcp.TextContent); ok {
				all.WriteString(text.Text + "\n")
			}
		}
		return all.String(), res.IsError
	}, func() { _ = session.Close() }
}

// call starts mulligan mcp and calls one of its tools.
func call(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	tool, stop := serve(ctx, ts, args[1:]...)
	defer stop()
	text, failed := tool(args[0])
	_, err := ts.Stdout().Write([]byte(text))
	ts.Check(err)
	if failed != neg {
		ts.Fatalf("%s failed: %t", args[0], failed)
	}
}

// outlive calls a tool of one mulligan mcp twice, and ends the daemon that init started in between.
func outlive(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	tool, stop := serve(ctx, ts)
	defer stop()
	if text, failed := tool(args[0]); failed {
		ts.Fatalf("%s", text)
	}
	end(ts, false, nil)
	text, _ := tool(args[0]) // a fake has forgotten the app
	_, err := ts.Stdout().Write([]byte(text))
	ts.Check(err)
	_, err = ipc.NewClient(userSocket(ts.Getenv("WORK"))).Status(ctx)
	ts.Check(err)
}
