package snaptest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/testkit"
)

// The suite is tested with the simplest driver there can be, of a layer that
// is one file: it passes, and with each of its faults switched on it fails.
func TestReference(t *testing.T) {
	fault := os.Getenv("SNAPTEST_FAULT")
	Run(t, func(t *testing.T) Subject { return newFile(t, fault) })
}

func TestReferenceSalvage(t *testing.T) {
	fault := os.Getenv("SNAPTEST_FAULT")
	RunSalvage(t, func(t *testing.T) Breakable { return newFile(t, fault) })
}

// TestSalvageFaultsAreFound: each fault of a Salvager fails its case.
func TestSalvageFaultsAreFound(t *testing.T) {
	faults := map[string]string{
		"capture-broken":     "Kept",
		"salvage-not-raw":    "Kept",
		"salvage-touches":    "Kept",
		"salvage-keeps-none": "GoodOver",
		"sweep-unnamed":      "KillSalvage",
		"never-stale":        "Changed",
		"commit-always":      "Changed",
		"undo-nothing":       "GoodOver",
		"undo-half":          "GoodOver",
		"redo-nothing":       "Redo",
		"prepare-blind":      "Damage",
		"cancel-ignored":     "Cancelled",
		"kill-tears":         "KillSwitch",
		"kill-tears-redo":    "KillRedo",
	}
	for fault, where := range faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestReferenceSalvage$/text/^"+where+"$")
			cmd.Env = append(os.Environ(), "SNAPTEST_FAULT="+fault)
			out, err := cmd.CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte("--- FAIL: TestReferenceSalvage/")) {
				t.Errorf("%s does not find the fault: %v\n%s", where, err, out)
			}
		})
	}
}

func TestFaultsAreFound(t *testing.T) {
	faults := map[string]string{
		"capture-touches":  "RoundTrip",
		"hash-constant":    "Hash",
		"delete-takes-all": "DeleteInAnyOrder",
		"delete-keeps":     "DeleteInAnyOrder",
		"size-zero":        "Size",
		"size-double":      "Freed",
		"size-of-first":    "Size",
		"verify-blind":     "Damage",
		"prepare-blind":    "Damage",
		"prepare-commits":  "Prepare",
		"never-stale":      "Prepare",
		"commit-always":    "Changed",
		"commit-nothing":   "CommitTwice",
		"undo-nothing":     "UndoCommitted",
		"undo-always":      "UndoRefused",
		"check-believes":   "UndoAfterWrites",
		"finish-keeps":     "Resume$",
		"sweep-nothing":    "Sweep",
		"sweep-unnamed":    "Sweep",
		"cancel-ignored":   "Cancelled",
	}
	for fault, where := range faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			for _, run := range []string{where, "."} {
				cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestReference$/"+run, "-rapid.nofailfile", "-rapid.checks=1", "-rapid.shrinktime=1ms")
				cmd.Env = append(os.Environ(), "SNAPTEST_FAULT="+fault)
				out, err := cmd.CombinedOutput()
				if err == nil || !bytes.Contains(out, []byte("--- FAIL: TestReference/")) {
					t.Errorf("%s does not find the fault: %v\n%s", run, err, out)
				}
			}
		})
	}
}

// file is a layer that is one file, and its driver at once.
type file struct {
	dir, fault string
	kill       int // the step that fails; 0: none
	steps      int // since KillAt
}

func newFile(t *testing.T, fault string) *file {
	f := &file{dir: t.TempDir(), fault: fault}
	for _, name := range []string{"snap", "switch"} {
		must(os.Mkdir(f.path(name), 0o700))
	}
	must(os.WriteFile(f.live(), []byte("first"), 0o600))
	return f
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (f *file) path(parts ...string) string { return filepath.Join(f.dir, filepath.Join(parts...)) }
func (f *file) live() string                { return f.path("live") }

func (f *file) Driver() snap.Driver { return f }
func (f *file) Reopen(*testing.T)   { f.fault = strings.Clone(f.fault) }

func (f *file) Mutate(t *testing.T, _ int64) {
	data := testkit.Bytes(t, unique+8)
	must(os.WriteFile(f.live(), data, 0o600))
}

// broken begins the content that the driver cannot read.
const broken = "broken "

func (f *file) Wrecks() []string { return []string{"text"} }

func (f *file) Wreck(_ *testing.T, _ string, seed int64) {
	must(os.WriteFile(f.live(), fmt.Appendf(nil, "%s%0*d", broken, unique, seed), 0o600))
}

func (f *file) Bytes(*testing.T) string { return f.hash(f.live()).String() }

func (f *file) KillAt(n int) { f.kill, f.steps = n, 0 }
func (f *file) Killed() bool { return f.kill > 0 && f.steps >= f.kill }

// step is where the driver can be killed.
func (f *file) step() error {
	f.steps++
	if f.Killed() {
		return errs.New(errs.Failed, "step", "killed")
	}
	return nil
}

func (f *file) Fingerprint(*testing.T) string { return f.hash(f.live()).String() }

func (f *file) Damage(_ *testing.T, id snap.SnapshotID) {
	data, err := os.ReadFile(f.path("snap", string(id)))
	must(err)
	data[len(data)/2] ^= 1
	must(os.WriteFile(f.path("snap", string(id)), data, 0o600))
}

func (f *file) Stored(*testing.T) (total int64) {
	list, err := os.ReadDir(f.path("snap"))
	must(err)
	for _, e := range list {
		info, err := e.Info()
		must(err)
		total += info.Size()
	}
	return total
}

func (f *file) hash(path string) snap.Hash {
	data, err := os.ReadFile(path)
	must(err)
	return sha256.Sum256(data)
}

func (f *file) copy(from, to string) {
	data, err := os.ReadFile(from)
	must(err)
	must(os.WriteFile(to, data, 0o600))
}

func (f *file) ctx(ctx context.Context) error {
	if f.fault == "cancel-ignored" {
		return nil
	}
	return ctx.Err()
}

// unreadable reports whether the file at path is broken.
func (f *file) unreadable(path string) bool {
	data, err := os.ReadFile(path)
	must(err)
	return bytes.HasPrefix(data, []byte(broken))
}

// Salvage keeps the file whatever is in it.
func (f *file) Salvage(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	if err := errors.Join(f.ctx(ctx), f.step()); err != nil {
		return snap.Snapshot{}, err
	}
	s, err := f.keep(req)
	switch f.fault {
	case "salvage-touches":
		must(os.WriteFile(f.live(), []byte(broken), 0o600))
	case "salvage-keeps-none":
		path := f.path("snap", string(req.ID))
		must(os.WriteFile(path, []byte(broken), 0o600))
		must(os.WriteFile(path+".sum", []byte(f.hash(path).String()), 0o600))
	}
	s.Raw = f.fault != "salvage-not-raw"
	return s, errors.Join(err, f.step())
}

func (f *file) Capture(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	if err := f.ctx(ctx); err != nil {
		return snap.Snapshot{}, err
	}
	if f.unreadable(f.live()) && f.fault != "capture-broken" {
		return snap.Snapshot{}, errs.New(errs.Invalid, "capture", "the file is broken")
	}
	return f.keep(req)
}

func (f *file) keep(req snap.CaptureRequest) (snap.Snapshot, error) {
	path, hash := f.path("snap", string(req.ID)), f.hash(f.live())
	f.copy(f.live(), path)
	must(os.WriteFile(path+".sum", []byte(hash.String()), 0o600))
	switch f.fault {
	case "capture-touches":
		must(os.WriteFile(f.live(), []byte(req.ID), 0o600))
	case "hash-constant":
		hash = snap.Hash{1}
	}
	return snap.Snapshot{ID: req.ID, Driver: "file", Hash: hash, Quiesced: req.Quiesced, Created: time.Now()}, nil
}

func (f *file) known(id snap.SnapshotID) error {
	if _, err := os.Stat(f.path("snap", string(id))); err != nil {
		return errs.New(errs.NotFound, "look up", "no snapshot %s", id)
	}
	return nil
}

func (f *file) whole(id snap.SnapshotID) error {
	sum, err := os.ReadFile(f.path("snap", string(id)+".sum"))
	must(err)
	if string(sum) != f.hash(f.path("snap", string(id))).String() {
		return errs.New(errs.Corrupt, "verify", "%s is damaged", id)
	}
	return nil
}

func (f *file) Verify(_ context.Context, id snap.SnapshotID, depth snap.Depth) error {
	if err := f.known(id); err != nil || depth == snap.Quick || f.fault == "verify-blind" {
		return err
	}
	return f.whole(id)
}

func (f *file) Size(_ context.Context, ids ...snap.SnapshotID) (total int64, err error) {
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if err := f.known(id); err != nil {
			return 0, err
		}
		info, err := os.Stat(f.path("snap", string(id)))
		must(err)
		total += info.Size()
	}
	switch f.fault {
	case "size-zero":
		total = 0
	case "size-double":
		total *= 2
	case "size-of-first":
		if len(ids) > 1 {
			return f.Size(context.Background(), ids[0])
		}
	}
	return total, nil
}

func (f *file) Delete(_ context.Context, id snap.SnapshotID) error {
	if f.fault == "delete-keeps" {
		return nil
	}
	list, err := os.ReadDir(f.path("snap"))
	must(err)
	for _, e := range list {
		if f.fault == "delete-takes-all" || strings.TrimSuffix(e.Name(), ".sum") == string(id) {
			must(os.Remove(f.path("snap", e.Name())))
		}
	}
	return nil
}

func (f *file) Sweep(ctx context.Context, gone snap.Gone) error {
	if f.fault == "sweep-nothing" {
		return nil
	}
	list, err := os.ReadDir(f.path("snap"))
	must(err)
	for _, e := range list {
		if id := snap.SnapshotID(strings.TrimSuffix(e.Name(), ".sum")); slices.Contains(gone.Snapshots, id) || f.fault == "sweep-unnamed" {
			must(f.Delete(ctx, id))
		}
	}
	list, err = os.ReadDir(f.path("switch"))
	must(err)
	for _, e := range list {
		if slices.Contains(gone.Restores, snap.RestoreID(e.Name())) {
			must(os.Remove(f.path("switch", e.Name())))
		}
	}
	return nil
}

// fileSwitch is what is kept of a switch.
type fileSwitch struct {
	f         *file
	Req       snap.RestoreRequest
	Began     bool
	BackAgain bool
}

func (s *fileSwitch) path() string { return s.f.path("switch", string(s.Req.ID)) }

func (s *fileSwitch) save() {
	data, err := json.Marshal(s)
	must(err)
	must(os.WriteFile(s.path(), data, 0o600))
}

func (f *file) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	if err := f.ctx(ctx); err != nil {
		return nil, err
	}
	for _, id := range []snap.SnapshotID{req.Target, req.Base} {
		if err := f.known(id); err != nil {
			return nil, err
		}
		if f.fault != "prepare-blind" {
			if err := f.whole(id); err != nil {
				return nil, err
			}
		}
	}
	s := &fileSwitch{f: f, Req: req}
	if err := f.step(); err != nil {
		return nil, err
	}
	s.save()
	if f.fault == "prepare-commits" {
		f.copy(f.path("snap", string(req.Target)), f.live())
	}
	return s, nil
}

func (f *file) Resume(_ context.Context, id snap.RestoreID) (snap.Switch, error) {
	data, err := os.ReadFile(f.path("switch", string(id)))
	if err != nil {
		return nil, errs.New(errs.NotFound, "resume", "no switch %s", id)
	}
	s := &fileSwitch{f: f}
	must(json.Unmarshal(data, s))
	return s, nil
}

func (s *fileSwitch) stored(id snap.SnapshotID) string { return s.f.path("snap", string(id)) }

func (s *fileSwitch) Changes(limit int) ([]snap.Change, int) {
	if s.f.hash(s.stored(s.Req.Target)) == s.f.hash(s.stored(s.Req.Base)) {
		return nil, 0
	}
	return []snap.Change{{Path: "live", Operation: snap.Modify}}[:min(1, limit)], 1
}

func (s *fileSwitch) Stale(context.Context) (bool, error) {
	return s.f.fault != "never-stale" && s.f.hash(s.f.live()) != s.f.hash(s.stored(s.Req.Base)), nil
}

func (s *fileSwitch) Commit(ctx context.Context) error {
	if err := s.f.ctx(ctx); err != nil {
		return err
	}
	if live := s.f.hash(s.f.live()); s.f.fault != "commit-always" && live != s.f.hash(s.stored(s.Req.Base)) && live != s.f.hash(s.stored(s.Req.Target)) {
		return snap.Changed("restore", "live")
	}
	if s.f.fault == "kill-tears-redo" && s.f.unreadable(s.stored(s.Req.Target)) || s.f.fault == "kill-tears" {
		must(os.WriteFile(s.f.live(), []byte(broken), 0o600))
	}
	if err := s.f.step(); err != nil {
		return err
	}
	s.Began = true
	s.save()
	if err := s.f.step(); err != nil {
		return err
	}
	if s.f.fault != "commit-nothing" && !(s.f.fault == "redo-nothing" && s.f.unreadable(s.stored(s.Req.Target))) {
		s.f.copy(s.stored(s.Req.Target), s.f.live())
	}
	return s.f.step()
}

func (s *fileSwitch) Undo(ctx context.Context) error {
	if err := s.f.ctx(ctx); err != nil {
		return err
	}
	if (s.Began || s.f.fault == "undo-always") && s.f.fault != "undo-nothing" {
		s.f.copy(s.stored(s.Req.Base), s.f.live())
	}
	if s.f.fault == "undo-half" && s.f.unreadable(s.f.live()) {
		must(os.Truncate(s.f.live(), int64(len(broken))))
	}
	if err := s.f.step(); err != nil {
		return err
	}
	s.BackAgain = true
	s.save()
	return nil
}

func (s *fileSwitch) Check(context.Context) (snap.Proof, error) {
	want := s.stored(s.Req.Target)
	if s.BackAgain {
		want = s.stored(s.Req.Base)
	}
	p := snap.Proof{Pre: s.f.hash(s.stored(s.Req.Base)), Post: s.f.hash(s.f.live()), Want: s.f.hash(want)}
	if s.f.fault == "check-believes" {
		p.Post = p.Want
	}
	p.Match = p.Post == p.Want
	return p, nil
}

func (s *fileSwitch) Finish(context.Context) error {
	if s.f.fault != "finish-keeps" {
		_ = os.Remove(s.path())
	}
	return nil
}
