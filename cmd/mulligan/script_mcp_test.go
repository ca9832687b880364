package main

import (
	"context"
	"os"
	"os/exec"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"
)

// call starts mulligan mcp and calls one of its tools, as an agent does.
func call(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	bin, err := exec.LookPath("mulligan")
	ts.Check(err)
	cmd := exec.Command(bin, append([]string{"mcp"}, args[1:]...)...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+ts.Getenv("XDG_RUNTIME_DIR"))
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	ts.Check(err)
	defer session.Close()
	res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: args[0], Arguments: map[string]any{}})
	ts.Check(err)
	for _, c := range res.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			_, err := ts.Stdout().Write([]byte(text.Text + "\n"))
			ts.Check(err)
		}
	}
	if res.IsError {
		ts.Fatalf("%s failed", args[0])
	}
}
