package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/ipc"
)

// agent is a coding agent's side of MCP: it spawns `mulligan mcp` and calls its tools.
type agent struct {
	session *mcp.ClientSession

	mu    sync.Mutex
	began time.Time // of the call under way
	calls int
}

// newAgent starts the MCP server in the workspace, as an agent does.
func newAgent(ctx context.Context, s *stage) (*agent, error) {
	a := &agent{}
	client := mcp.NewClient(&mcp.Implementation{Name: "mulligan-demo", Version: "1"},
		&mcp.ClientOptions{ProgressNotificationHandler: a.progress})
	server := exec.Command(filepath.Join(s.bin, "mulligan"), "mcp")
	server.Dir, server.Env = s.workspace, s.environ()
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: server}, nil)
	if err != nil {
		return nil, fmt.Errorf("mulligan mcp: %w", err)
	}
	a.session = session
	return a, nil
}

// progress prints each stage's end as the server tells of it.
func (a *agent) progress(_ context.Context, n *mcp.ProgressNotificationClientRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !strings.Contains(n.Params.Message, string(ipc.StageRunning)) {
		fmt.Printf("      %5d ms  %s\n", time.Since(a.began).Milliseconds(), n.Params.Message)
	}
}

// call calls a tool, prints the call, and decodes its result into out.
func (a *agent) call(ctx context.Context, tool string, args map[string]any, out any) error {
	shown, err := json.Marshal(args)
	if err != nil {
		return err
	}
	fmt.Printf("   agent → %s %s\n", tool, shown)
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	a.mu.Lock()
	a.calls++
	params.SetProgressToken(fmt.Sprintf("call-%d", a.calls))
	a.began = time.Now()
	a.mu.Unlock()

	result, err := a.session.CallTool(ctx, params)
	if err != nil {
		return fmt.Errorf("%s: %w", tool, err)
	}
	if result.IsError {
		return fmt.Errorf("%s: %s", tool, text(result))
	}
	data, err := json.Marshal(result.StructuredContent)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out)
}

func text(r *mcp.CallToolResult) string {
	var lines []string
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			lines = append(lines, t.Text)
		}
	}
	return strings.Join(lines, " ")
}

// create makes a checkpoint of code, files and data.
func (a *agent) create(ctx context.Context, notes string) (ipc.Checkpoint, error) {
	var cp ipc.Checkpoint
	if err := a.call(ctx, "create_checkpoint", map[string]any{"notes": notes}, &cp); err != nil {
		return cp, err
	}
	if cp.FilesSnapshot == nil || len(cp.DBSnapshots) != 1 || cp.Ref == nil {
		return cp, fmt.Errorf("checkpoint %s lacks a layer: %+v", cp.ID, cp)
	}
	fmt.Printf("   ← %s: code %.12s, files %s, database %s (%s), quiesced %v, %d ms\n", cp.ID, *cp.Ref, *cp.FilesSnapshot,
		cp.DBSnapshots[0].Database, cp.DBSnapshots[0].SnapshotID, cp.Quiesced, time.Since(a.began).Milliseconds())
	return cp, nil
}

// rollback takes the app to a checkpoint, and gives the safety checkpoint of
// where it was before. It insists on a whole receipt.
func (a *agent) rollback(ctx context.Context, to ipc.CheckpointID, reason string) (ipc.CheckpointID, error) {
	var r ipc.RollbackResult
	if err := a.call(ctx, "rollback_app", map[string]any{"checkpoint_id": to, "reason": reason}, &r); err != nil {
		return "", err
	}
	var stages []ipc.StageName
	var times []string
	for _, st := range r.Stages {
		stages = append(stages, st.Stage)
		times = append(times, fmt.Sprintf("%s %s %d ms", st.Stage, st.Status, st.DurationMS))
		if st.Status == ipc.StageFailed {
			return "", fmt.Errorf("stage %s failed: %s", st.Stage, st.Notes)
		}
	}
	switch {
	case !r.RolledBack || r.RestoredTo == nil || r.RestoredTo.ID != to:
		return "", fmt.Errorf("the receipt doesn't say that %s was restored: %+v", to, r)
	case !slices.Equal(stages, ipc.Stages):
		return "", fmt.Errorf("the receipt's stages are %v", stages)
	case r.Verification == nil || !r.Verification.Match:
		return "", errors.New("the receipt's hashes don't match")
	case r.SafetyCheckpoint == nil:
		return "", errors.New("there is no safety checkpoint")
	}
	fmt.Printf("   ← %s\n", strings.Join(times, " · "))
	fmt.Printf("   ← rolled back to %s in %d ms; %d changes reverted; hashes match; safety checkpoint %s\n",
		to, time.Since(a.began).Milliseconds(), r.ChangesTotal, r.SafetyCheckpoint.ID)
	return r.SafetyCheckpoint.ID, nil
}
