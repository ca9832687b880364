package systemd

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/google/go-cmp/cmp"
)

func TestJournalFields(t *testing.T) {
	var text string
	var level journal.Priority
	var got map[string]string
	h := &journalHandler{level: slog.LevelInfo, send: func(m string, p journal.Priority, f map[string]string) error {
		text, level, got = m, p, f
		return nil
	}}
	log := slog.New(h).With("app", "shop").WithGroup("run")
	log.Warn("it did not go well", "err", errors.New("a b"), "1-st", 2, "message", "x", slog.Group("deep", "n", 1))
	want := map[string]string{"APP": "shop", "RUN_ERR": "a b", "RUN_1_ST": "2", "RUN_MESSAGE": "x", "RUN_DEEP_N": "1"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if level != journal.PriWarning || text != `it did not go well app=shop run_err="a b" run_1-st=2 run_message=x run_deep_n=1` {
		t.Errorf("%v %s", level, text)
	}
	slog.New(h).Info("plain", "priority", 1, "_x", 2, "9", 3)
	if d := cmp.Diff(map[string]string{"MULLIGAN_PRIORITY": "1", "X": "2", "MULLIGAN_": "3"}, got); d != "" {
		t.Error(d)
	}
	text = ""
	if slog.New(h).Debug("quiet"); text != "" {
		t.Error(text)
	}
}
