package layer

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"mulligan/systemd"
)

// part is a unit in memory, which is down on purpose when it is down.
type part struct{ up bool }

func (p *part) Name() string                { return "part" }
func (p *part) Start(context.Context) error { p.up = true; return nil }
func (p *part) Stop(context.Context) error  { p.up = false; return nil }
func (p *part) State(context.Context) (systemd.Status, error) {
	if p.up {
		return systemd.Status{Active: "active", Sub: "running"}, nil
	}
	return systemd.Status{Active: "inactive", Sub: "dead", Asked: true}, nil
}

// TestMachineStarts starts a machine whose parts run or are down on purpose, after it was stopped, and not, and twice, as a daemon does that
// was killed in between.
func TestMachineStarts(t *testing.T) {
	type state struct{ vm, host bool }
	const stop, again, start, damage = "stop", "start again", "start", "damage the note"
	for _, tt := range []struct {
		name string
		was  state
		do   []string
		want state
	}{
		{"what was stopped", state{true, true}, []string{stop, again}, state{true, true}},
		{"not a guest that was off", state{false, true}, []string{stop, again}, state{false, true}},
		{"not a unit that was down", state{true, false}, []string{stop, start}, state{true, false}},
		{"nothing else the second time", state{false, true}, []string{stop, start, start}, state{false, true}},
		{"nothing else, again the second time", state{true, false}, []string{stop, again, again}, state{true, false}},
		{"nothing again that was not stopped", state{false, true}, []string{again}, state{false, true}},
		{"nothing again where nothing ran", state{}, []string{stop, again}, state{}},
		{"nothing beside a part that runs", state{false, true}, []string{start}, state{false, true}},
		{"everything where nothing ran", state{}, []string{stop, start}, state{true, true}},
		{"everything of a machine that is new", state{}, []string{start}, state{true, true}},
		{"what two stops found", state{true, true}, []string{stop, stop, again}, state{true, true}},
		{"everything after a stop that is not known", state{true, false}, []string{stop, damage, again}, state{true, true}},
		{"everything after two stops, one of which is not known", state{true, false}, []string{stop, damage, stop, start}, state{true, true}},
		{"nothing else once what is not known was started", state{true, true}, []string{stop, damage, again, stop, again}, state{true, true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			vm, host := &part{tt.was.vm}, &part{tt.was.host}
			m := &Machine{Vm: vm, Host: host, note: filepath.Join(t.TempDir(), "machine.json")}
			for _, do := range tt.do {
				spoil := func(context.Context) error { return os.WriteFile(m.note, []byte(`{"vm":tr`), 0o600) }
				if err := map[string]func(context.Context) error{stop: m.Stop, again: m.StartAgain, start: m.Start, damage: spoil}[do](t.Context()); err != nil {
					t.Fatal(err)
				}
				if do == stop && (vm.up || host.up) {
					t.Fatal("a part runs after the stop")
				}
			}
			if got := (state{vm.up, host.up}); got != tt.want {
				t.Errorf("what runs of guest and host is %v, want %v", got, tt.want)
			}
		})
	}
}
