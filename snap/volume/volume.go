// Package volume is the driver of a volume of containers: a folder of the container engine's, with what the containers of an app
// keep there. The files themselves are captured and restored by the driver of workspaces.
//
// While the app runs, the containers that use the volume are paused for the moment in which its files are captured: the snapshot is
// what a power cut at that moment would have left.
package volume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files"
)

// Keeper is the container engine, as far as it concerns volumes.
type Keeper interface {
	// Place returns the folder of a volume.
	Place(ctx context.Context, volume string) (dir string, err error)
	// Users returns the names of the running containers that use a volume: those of the app, and strangers.
	Users(ctx context.Context, volume string) (own, strangers []string, err error)
	// Freeze pauses the app's containers that use a volume until thaw is called. started names those that did not run, and have, or may have, started since. The
	// error is of kind errs.Conflict if one runs and cannot be paused.
	Freeze(ctx context.Context, volume string) (thaw func() (started []string, err error), err error)
	// Thaw lets the containers go on that an earlier Freeze left paused, also one of a process that has died since. It waits for the end of one that is
	// under way.
	Thaw(ctx context.Context) error
}

// Config describes a volume.
type Config struct {
	Name   string // the engine's name of it
	Files  files.Config
	Keeper Keeper
}

// Driver captures and restores one volume.
type Driver struct {
	*files.Driver
	name   string
	dir    string
	keeper Keeper
	stuck  atomic.Bool // containers may still be paused, although no Freeze is under way
}

var (
	_ snap.Driver         = (*Driver)(nil)
	_ snap.Differ         = (*Driver)(nil)
	_ snap.ScopedPreparer = (*Driver)(nil)
	_ snap.LiveCapturer   = (*Driver)(nil)
	_ snap.Prechecker     = (*Driver)(nil)
	_ snap.GapFinder      = (*Driver)(nil)
	_ snap.Adopter        = (*Driver)(nil)
	_ snap.Seeder         = (*Driver)(nil)
	_ snap.Maintainer     = (*Driver)(nil)
)

// New returns the driver of a volume whose folder is cfg.Files.Dir.
func New(cfg Config) (*Driver, error) {
	d, err := files.New(cfg.Files)
	if err != nil {
		return nil, err
	}
	v := &Driver{Driver: d, name: cfg.Name, dir: cfg.Files.Dir, keeper: cfg.Keeper}
	v.stuck.Store(true) // the driver before this one, of the same process too, may have left some paused
	return v, nil
}

// CapturesLive reports true: the containers that use the volume are paused during a capture.
func (d *Driver) CapturesLive() bool { return true }

// strangers checks that the volume is where it was, and returns the running containers of others that use it.
func (d *Driver) strangers(ctx context.Context) ([]string, error) {
	dir, err := d.keeper.Place(ctx, d.name)
	if err != nil {
		return nil, err
	}
	if dir != d.dir {
		return nil, errs.New(errs.Conflict, "", "volume %s is in %s now, and was in %s when the app was configured", d.name, dir, d.dir).
			WithHint("`mulligan app set volumes=…` accepts what is there now")
	}
	_, strangers, err := d.keeper.Users(ctx, d.name)
	return strangers, err
}

// Capture captures the volume's files.
func (d *Driver) Capture(ctx context.Context, req snap.CaptureRequest) (s snap.Snapshot, err error) {
	strangers, err := d.strangers(ctx)
	if err != nil {
		return s, errs.Wrap(errs.Failed, "capture volume "+d.name, err)
	}
	if !req.Quiesced {
		if err := d.Warm(ctx); err != nil && !errors.Is(err, snap.ErrChanged) { // the containers are paused for what changes from here on
			return s, err
		}
		thaw, err := d.keeper.Freeze(ctx, d.name)
		if err != nil {
			d.stuck.Store(true) // it may have paused some of them
			if errs.KindOf(err) == errs.Conflict {
				err = &errs.Error{Kind: errs.Conflict, Err: unpaused{err}, Hint: whileStopped}
			}
			return s, errs.Wrap(errs.Failed, "capture volume "+d.name, err)
		}
		var once sync.Once
		var started []string
		var stuck error
		goOn := func() { once.Do(func() { started, stuck = thaw() }) }
		req.Read = goOn
		s, err = d.Driver.Capture(ctx, req)
		if goOn(); stuck != nil {
			d.stuck.Store(true)
			stuck = fmt.Errorf("containers may still be paused: %w", stuck)
			s.Warnings = append(s.Warnings, stuck.Error())
		}
		if err == nil && len(started) > 0 { // what they wrote may be in the snapshot in part
			err = &errs.Error{Kind: errs.Conflict, Op: "capture volume " + d.name, Message: "containers were started meanwhile: " + strings.Join(started, ", "),
				Hint: "try again, or: " + whileStopped, Err: snap.ErrChanged}
		}
		if err != nil {
			return s, errs.Also(err, stuck)
		}
	} else if s, err = d.Driver.Capture(ctx, req); err != nil {
		return s, err
	}
	if len(strangers) > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("volume %s is also used by containers that are not of the app, and ran on: %s", d.name, strings.Join(strangers, ", ")))
	}
	return s, nil
}

// whileStopped is the hint of a capture that fails because containers run.
const whileStopped = "`mulligan create` stops the containers while it captures them"

// unpaused is the error if a container cannot be paused. It counts as a snap.ErrChanged: while the container runs, there is no state of one moment to capture.
type unpaused struct{ error }

func (u unpaused) Unwrap() error { return u.error }

func (u unpaused) Is(target error) bool { return target == snap.ErrChanged }

// alone returns an error if a container of others uses the volume: its files must not change below it.
func (d *Driver) alone(ctx context.Context) error {
	strangers, err := d.strangers(ctx)
	if err == nil && len(strangers) > 0 {
		err = errs.New(errs.Conflict, "", "volume %s is also used by containers that are not of the app: %s", d.name, strings.Join(strangers, ", ")).
			WithHint("stop them, or leave the volume as it is: --without volume:%s", d.name)
	}
	return errs.Wrap(errs.Failed, "restore volume "+d.name, err)
}

// Precheck refuses what Prepare would refuse.
func (d *Driver) Precheck(ctx context.Context, target snap.SnapshotID, paths []string) error {
	if err := d.alone(ctx); err != nil {
		return err
	}
	return d.Driver.Precheck(ctx, target, paths)
}

// Prepare prepares a switch of the volume's files.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	if err := d.alone(ctx); err != nil {
		return nil, err
	}
	return d.guard(d.Driver.Prepare(ctx, req))
}

// PrepareScoped prepares a switch of some of the volume's files.
func (d *Driver) PrepareScoped(ctx context.Context, req snap.RestoreRequest, paths []string) (snap.Switch, error) {
	if err := d.alone(ctx); err != nil {
		return nil, err
	}
	return d.guard(d.Driver.PrepareScoped(ctx, req, paths))
}

// Resume returns the switch that an earlier process prepared.
func (d *Driver) Resume(ctx context.Context, id snap.RestoreID) (snap.Switch, error) {
	return d.guard(d.Driver.Resume(ctx, id))
}

// Adopt stores a snapshot of another volume's.
func (d *Driver) Adopt(ctx context.Context, from snap.Driver, id, as snap.SnapshotID) (snap.Snapshot, error) {
	return d.Driver.Adopt(ctx, filesOf(from), id, as)
}

// Seed brings a volume that no container uses to a snapshot, with what another volume still has of it.
func (d *Driver) Seed(ctx context.Context, from snap.Driver, id snap.SnapshotID) error {
	own, strangers, err := d.keeper.Users(ctx, d.name)
	if all := append(own, strangers...); err == nil && len(all) > 0 {
		err = errs.New(errs.Conflict, "", "volume %s is used by a container that runs: %s", d.name, strings.Join(all, ", ")).WithHint("somebody started it meanwhile; try again")
	}
	if err != nil {
		return errs.Wrap(errs.Failed, "fill volume "+d.name, err)
	}
	return d.Driver.Seed(ctx, filesOf(from), id)
}

// filesOf returns the driver of a volume's files, or any other driver as it is.
func filesOf(from snap.Driver) snap.Driver {
	if v, ok := from.(*Driver); ok {
		return v.Driver
	}
	return from
}

func (d *Driver) guard(sw snap.Switch, err error) (snap.Switch, error) {
	if err != nil {
		return nil, err
	}
	return &guarded{sw, d}, nil
}

// Sweep also lets containers go on that an earlier process left paused.
func (d *Driver) Sweep(ctx context.Context, gone snap.Gone) error {
	if err := d.keeper.Thaw(ctx); err != nil {
		return err
	}
	return d.Driver.Sweep(ctx, gone)
}

// Maintain lets the containers go on that a capture could not let go on.
func (d *Driver) Maintain(ctx context.Context) error {
	if !d.stuck.Swap(false) {
		return nil
	}
	err := d.keeper.Thaw(ctx)
	if err != nil {
		d.stuck.Store(true)
	}
	return errs.Wrap(errs.Failed, "containers may still be paused", err)
}

// FindGaps adds the strangers that use the volume.
func (d *Driver) FindGaps(ctx context.Context) ([]snap.Gap, error) {
	gaps, err := d.Driver.FindGaps(ctx)
	if err != nil {
		return nil, err
	}
	strangers, err := d.strangers(ctx)
	if err == nil && len(strangers) > 0 {
		gaps = append(gaps, snap.Gap{
			What:   fmt.Sprintf("Volume %s is also used by containers that are not of the app: %s.", d.name, strings.Join(strangers, ", ")),
			Remedy: "while they run, the volume cannot be restored"})
	}
	return gaps, err
}

// guarded is a switch that changes nothing below a container that runs.
type guarded struct {
	snap.Switch
	d *Driver
}

// Warm lets the switch work ahead, if it can.
func (g *guarded) Warm(ctx context.Context) error {
	if w, ok := g.Switch.(snap.Warmer); ok {
		return w.Warm(ctx)
	}
	return nil
}

// Commit makes the volume's files the target, unless a container that uses them runs: the engine may have started one since.
func (g *guarded) Commit(ctx context.Context) error {
	own, strangers, err := g.d.keeper.Users(ctx, g.d.name)
	if all := append(own, strangers...); err == nil && len(all) > 0 {
		err = errs.New(errs.Conflict, "", "volume %s is used by a container that runs: %s", g.d.name, strings.Join(all, ", ")).
			WithHint("somebody started it during the restore; try again")
	}
	if err != nil {
		return errs.Wrap(errs.Failed, "restore volume "+g.d.name, err)
	}
	return g.Switch.Commit(ctx)
}
