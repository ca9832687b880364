package agents

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/payloads/*.want anew")

// Every event of every agent, as its documentation gives it, in
// testdata/payloads/AGENT/EVENT[-VARIANT].json, means what AGENT.want says.
func TestRead(t *testing.T) {
	for _, a := range all {
		files, err := filepath.Glob("testdata/payloads/" + a.Name + "/*.json")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no payloads: %v", a.Name, err)
		}
		var got strings.Builder
		for _, file := range files {
			payload, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			variant := strings.TrimSuffix(filepath.Base(file), ".json")
			name, _, _ := strings.Cut(variant, "-")
			ev, err := a.Read(name, payload)
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			if ev.Name != name {
				t.Errorf("%s: the event is called %q", file, ev.Name)
			}
			kind := []string{"other", "turn begins", "turn ends", "call begins", "call ends"}[ev.Kind]
			fmt.Fprintf(&got, "%s: %s; session %q turn %q message %q call %q tool %q dirs %q",
				variant, kind, ev.Session, ev.Turn, ev.Message, ev.Call, ev.Tool, ev.Dirs)
			if ev.Prompt != "" {
				fmt.Fprintf(&got, " prompt %q", ev.Prompt)
			}
			got.WriteByte('\n')
		}
		golden := "testdata/payloads/" + a.Name + ".want"
		if *update {
			if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("%s:\n%swant:\n%s", a.Name, got.String(), want)
		}
	}
}

// Each event that an agent's settings ask for is one that is understood, and
// has a payload.
func TestInstalledEventsAreRead(t *testing.T) {
	kinds := map[string]map[string]Kind{
		"claude-code": claudeEvents, "codex": codexEvents, "gemini": geminiEvents, "cursor": cursorEvents,
		"opencode": opencodeEvents, "cline": clineEvents, "copilot": copilotEvents, "goose": gooseEvents,
	}
	for _, a := range all {
		if len(kinds[a.Name]) == 0 {
			t.Errorf("%s has no events", a.Name)
		}
		for name := range kinds[a.Name] {
			files, _ := filepath.Glob("testdata/payloads/" + a.Name + "/" + name + "*.json")
			if len(files) == 0 {
				t.Errorf("%s: there is no payload of %s", a.Name, name)
			}
		}
	}
}

// documented are the events that each agent has, by its own documentation,
// schemas or program, in the versions that agents.go's files name.
var documented = map[string]string{
	"claude-code": `PreToolUse PostToolUse PostToolUseFailure PostToolBatch Notification UserPromptSubmit UserPromptExpansion SessionStart
		SessionEnd Stop StopFailure SubagentStart SubagentStop PreCompact PostCompact PermissionRequest PermissionDenied Setup TeammateIdle
		TaskCreated TaskCompleted Elicitation ElicitationResult ConfigChange WorktreeCreate WorktreeRemove InstructionsLoaded CwdChanged
		FileChanged MessageDisplay`,
	"codex": `SessionStart SessionEnd UserPromptSubmit PreToolUse PermissionRequest PostToolUse PreCompact PostCompact SubagentStart SubagentStop
		Stop StopFailure Interrupt`,
	"gemini": `SessionStart SessionEnd BeforeAgent AfterAgent BeforeModel AfterModel BeforeToolSelection BeforeTool AfterTool PreCompress Notification`,
	"cursor": `sessionStart sessionEnd preToolUse postToolUse postToolUseFailure subagentStart subagentStop beforeShellExecution afterShellExecution
		beforeMCPExecution afterMCPExecution beforeReadFile afterFileEdit beforeSubmitPrompt preCompact stop afterAgentResponse afterAgentThought
		beforeTabFileRead afterTabFileEdit`,
	"opencode": `chat.message tool.execute.before tool.execute.after session.idle`, // of the many, those that the plugin passes on
	"cline":    `TaskStart TaskResume TaskCancel TaskComplete UserPromptSubmit PreToolUse PostToolUse PreCompact`,
	"copilot": `sessionStart sessionEnd userPromptSubmitted preToolUse postToolUse postToolUseFailure agentStop subagentStart subagentStop
		errorOccurred preCompact permissionRequest Notification
		SessionStart SessionEnd UserPromptSubmit PreToolUse PostToolUse PostToolUseFailure Stop SubagentStop ErrorOccurred PreCompact`,
	"goose": `SessionStart SessionEnd UserPromptSubmit PreToolUse PreToolUseResult PostToolUse PostToolUseFailure Stop BeforeReadFile AfterFileEdit
		BeforeShellExecution AfterShellExecution`,
}

// Each documented event of each agent has a payload, and there is none of
// another.
func TestEveryEventHasAPayload(t *testing.T) {
	for _, a := range all {
		events := map[string]bool{}
		for _, name := range strings.Fields(documented[a.Name]) {
			events[name] = false
		}
		files, err := os.ReadDir("testdata/payloads/" + a.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			name, _, _ := strings.Cut(strings.TrimSuffix(f.Name(), ".json"), "-")
			if _, known := events[name]; !known {
				t.Errorf("%s: %s is of no event", a.Name, f.Name())
			}
			events[name] = true
		}
		for name, found := range events {
			if !found {
				t.Errorf("%s: there is no payload of %s", a.Name, name)
			}
		}
	}
}

func TestReadRefusesJunk(t *testing.T) {
	for _, a := range all {
		for _, junk := range []string{"", " ", "null", "[]", `"x"`, "{", `{"session_id":7,"sessionId":7,"sessionID":7,"taskId":7,"conversation_id":7}`, "\xff\xfe"} {
			if ev, err := a.Read("Stop", []byte(junk)); err == nil {
				t.Errorf("%s took %q for %+v", a.Name, junk, ev)
			}
		}
	}
}

func TestReply(t *testing.T) {
	for _, tt := range []struct{ agent, event, want string }{
		{"claude-code", "UserPromptSubmit", ""}, {"codex", "Stop", ""}, {"goose", "PreToolUse", ""}, {"copilot", "preToolUse", ""},
		{"gemini", "BeforeTool", "{}"}, {"cursor", "beforeSubmitPrompt", `{"continue":true}`}, {"cursor", "preToolUse", "{}"}, {"cursor", "", "{}"},
		{"cline", "PreToolUse", `{"cancel":false}`}, {"opencode", "chat.message", ""},
	} {
		a, err := ByName(tt.agent)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Reply(tt.event); got != tt.want {
			t.Errorf("%s, %s: %q", tt.agent, tt.event, got)
		}
	}
	if _, err := ByName("hal"); err == nil {
		t.Error("there is an agent hal")
	}
	if !slices.IsSorted(Names()) {
		t.Errorf("%v", Names())
	}
}

// Whatever is fed to the parsers, an event comes out that the daemon can be told.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/payloads/*/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".json"), "-")
		f.Add(name, b)
	}
	f.Fuzz(func(t *testing.T, name string, payload []byte) {
		for _, a := range all {
			ev, err := a.Read(name, payload)
			_ = a.Reply(ev.Name)
			if err != nil {
				continue
			}
			_ = sameArgs(ev.Args)
			for _, s := range []string{ev.Session, ev.Turn, ev.Message, ev.Call, ev.Tool} {
				if got := id(s); len(got) > 200 || got == "." || got == ".." || strings.ContainsAny(got, "\x00\n") {
					t.Errorf("%s: the id %q", a.Name, got)
				}
			}
		}
	})
}
