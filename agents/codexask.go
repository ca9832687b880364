package agents

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"mulligan/errs"
)

// codexTime bounds how long Codex may take to answer.
const codexTime = 10 * time.Second

// askCodex asks Codex which of mulligan's hooks it runs in a folder, by the request hooks/list of its app-server
// (https://developers.openai.com/codex/app-server): a JSON object per line, on standard input and output.
func askCodex(ctx context.Context, dir string) (problem, remedy string, err error) {
	const op = "ask Codex"
	program, err := exec.LookPath("codex")
	if err != nil {
		return "", "", errs.New(errs.NotFound, op, "there is no program codex in PATH")
	}
	ctx, cancel := context.WithTimeout(ctx, codexTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "app-server")
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", "", errs.Wrap(errs.Failed, op, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", "", errs.Wrap(errs.Failed, op, err)
	}
	if err := cmd.Start(); err != nil {
		return "", "", errs.Wrap(errs.Failed, op, err)
	}
	hooks, err := codexHooks(in, out, dir)
	_ = in.Close() // the server ends with its input, or else when ctx does
	cancel()
	_ = cmd.Wait() // it was killed, or its answer is all that counts
	if err != nil {
		return "", "", errs.Wrap(errs.Failed, op, err)
	}
	problem, remedy = judgeCodex(hooks)
	return problem, remedy, nil
}

// codexHook is a hook as Codex lists it.
type codexHook struct {
	Event   string `json:"eventName"`
	Command string `json:"command"`
	Enabled *bool  `json:"enabled"`
	Trust   string `json:"trustStatus"` // managed, trusted, untrusted, modified; "" in versions without trust
}

// codexHooks makes the requests and returns the hooks of the folder.
func codexHooks(in io.Writer, out io.Reader, dir string) ([]codexHook, error) {
	enc := json.NewEncoder(in)
	for _, message := range []map[string]any{
		{"id": 1, "method": "initialize", "params": map[string]any{
			"clientInfo": map[string]any{"name": "mulligan", "title": "mulligan doctor", "version": "1"}, "capabilities": map[string]any{"experimentalApi": true}}},
		{"method": "initialized"},
		{"id": 2, "method": "hooks/list", "params": map[string]any{"cwds": []string{dir}}},
	} {
		if err := enc.Encode(message); err != nil {
			return nil, err
		}
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Result struct {
				Data []struct {
					Hooks []codexHook `json:"hooks"`
				} `json:"data"`
			} `json:"result"`
			Error *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if json.Unmarshal(lines.Bytes(), &m) != nil || m.Method != "" || string(m.ID) != "2" {
			continue // news, or the answer to initialize
		}
		if m.Error != nil {
			return nil, errs.New(errs.Unsupported, "", "it refused hooks/list: %.200s", m.Error.Message)
		}
		var hooks []codexHook
		for _, d := range m.Result.Data {
			hooks = append(hooks, d.Hooks...)
		}
		return hooks, nil
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, errs.New(errs.Unavailable, "", "it ended without an answer")
}

// judgeCodex returns what keeps Codex from running mulligan's hooks, and what to do about it; "" if nothing does.
func judgeCodex(hooks []codexHook) (problem, remedy string) {
	var untrusted, off []string
	ours := 0
	for _, h := range hooks {
		if !strings.Contains(h.Command, " hook codex") {
			continue
		}
		ours++
		if h.Trust == "untrusted" || h.Trust == "modified" {
			untrusted = append(untrusted, h.Event)
		}
		if h.Enabled != nil && !*h.Enabled {
			off = append(off, h.Event)
		}
	}
	for _, events := range [][]string{untrusted, off} {
		slices.Sort(events)
	}
	switch {
	case ours == 0:
		return "Codex lists none of mulligan's hooks for this folder: no turn of it has a checkpoint",
			"switch hooks on: early versions need [features] codex_hooks = true in config.toml; a project's settings count only in a project that you trust"
	case len(untrusted) > 0:
		return fmt.Sprintf("Codex does not run mulligan's hooks until you trust them (%s): no turn of it has a checkpoint", list(untrusted)),
			"type /hooks in Codex, look at them and trust them"
	case len(off) > 0:
		return fmt.Sprintf("Codex has switched mulligan's hooks off (%s)", list(off)), "type /hooks in Codex and switch them on"
	}
	return "", ""
}
