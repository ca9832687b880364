package daemon_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mulligan/ipc"
)

// TestTitles calls turns by their prompts: in the turns, the checkpoints and the receipts, and nowhere that leaves this host or stays
// for good. Without titles, none is kept, nor are those that were.
func TestTitles(t *testing.T) {
	d, w := openAuto(t, time.Hour)
	const prompt = "Rename\nall the words, please"
	turn := func(id ipc.TurnID, word string) {
		if _, err := d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: id, ConversationID: "c", Agent: "test", Title: prompt}); err != nil {
			t.Fatal(err)
		}
		w.set(t, word)
		end(t, d, id)
	}
	shown := func() (titles []string) {
		turns, err := d.Turns(t.Context(), root, "shop", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, t := range turns {
			titles = append(titles, t.Title)
		}
		for _, cp := range agentCheckpoints(t, d) {
			titles = append(titles, cp.Title+" by "+cp.Agent)
		}
		safety, err := d.Checkpoints(t.Context(), root, "shop", ipc.CheckpointQuery{Trigger: ipc.TriggerPreRollback})
		if err != nil {
			t.Fatal(err)
		}
		for _, cp := range safety.Checkpoints {
			titles = append(titles, cp.RollbackTitle)
		}
		return titles
	}
	turn("t1", "one")
	const title = "Rename all the words, please"
	if got := strings.Join(shown(), "|"); got != title+"|"+title+" by test" {
		t.Errorf("the turn is called %s", got)
	}
	dry, err := d.Rollback(t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{DryRun: true}, nil)
	if err != nil || dry.RestoredTo.Title != title {
		t.Errorf("the preview is of %+v, %v", dry.RestoredTo, err)
	}
	if res, err := d.Rollback(t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{}, nil); err != nil || res.RestoredTo.Title != title {
		t.Errorf("the receipt is of %+v, %v", res.RestoredTo, err)
	} else if cp, err := d.Checkpoint(t.Context(), root, "shop", res.SafetyCheckpoint.ID); err != nil || cp.RollbackTo != res.RestoredTo.ID || cp.RollbackTitle != title {
		t.Errorf("the safety checkpoint is %+v, %v", cp, err)
	}
	trail, err := d.Audit(t.Context(), root, "shop", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(trail); err != nil || strings.Contains(string(text), "all the words") {
		t.Errorf("the audit trail has the prompt: %s, %v", text, err)
	}

	off := false
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Titles: &off}); err != nil {
		t.Fatal(err)
	}
	turn("t2", "two")
	if got := strings.Join(shown(), "|"); strings.Contains(got, "Rename") {
		t.Errorf("without titles, turns are called %s", got)
	}
	on := true
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Titles: &on}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(shown(), "|"); strings.Contains(got, "Rename") {
		t.Errorf("titles came back: %s", got)
	}
}
