package physical

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/privsep"
	known "mulligan/snap/postgres/physical/facts"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/session"

	"golang.org/x/sys/unix"
)

// Enable puts the cluster into physical mode. It returns its changes to the server as whole sentences, and whether a change
// needs a restart of the server. The restart may be done at any time: until then a replication slot keeps the log. Enabling
// again changes nothing. [Driver.Maintain] takes the first base backup.
func (d *Driver) Enable(ctx context.Context) (changes []string, restartNeeded bool, err error) {
	const op = "enable physical mode"
	err = d.Do(ctx, op, func() (err error) {
		changes, restartNeeded, err = d.enable(ctx)
		d.left = d.left && err != nil
		return err
	})
	return changes, restartNeeded, err
}

// enable does the work of Enable. The caller must hold the lock of Do.
func (d *Driver) enable(ctx context.Context) (changes []string, restart bool, err error) {
	c, err := d.server.connect(ctx)
	if err != nil {
		return nil, false, err
	}
	defer c.Close()
	f, err := d.server.inspect(ctx, c)
	if err != nil {
		return nil, false, err
	}
	made, err := d.admit(ctx, f)
	if err != nil {
		return nil, false, err
	}
	if made {
		changes = append(changes, fmt.Sprintf("The log and copies of the cluster are kept in %s.", d.cfg.Store))
	}
	if others := f.Others(d.server.database()); len(others) > 0 {
		changes = append(changes, "A restore takes the whole cluster back, also these databases: "+strings.Join(others, ", ")+".")
	}
	more, restart, err := d.configure(ctx, c, f)
	if err != nil {
		return nil, false, err
	}
	changes = append(changes, more...)
	if f, err = d.server.inspect(ctx, c); err != nil {
		return nil, false, err
	}
	if err := d.records.remember(f); err != nil {
		return nil, false, err
	}
	if err := d.archive.collect(ctx, c, f); err != nil { // this makes the slot if necessary
		return nil, false, err
	}
	if !d.archive.filledBy(f) && !f.Slot {
		changes = append(changes, fmt.Sprintf("The replication slot %q was made; it keeps the server's log until it is copied.", slot))
	}
	return changes, restart, nil
}

// admit makes the store, unless physical mode cannot handle the cluster. made reports whether the store is new.
func (d *Driver) admit(ctx context.Context, f facts) (made bool, err error) {
	if made, err = d.store.claim(ctx); err != nil {
		return false, err
	}
	if err := d.server.refuse(ctx, f); err != nil {
		if made { // the store has nothing of the cluster yet
			err = errs.Also(err, dropStore(context.WithoutCancel(ctx), d.cfg.Owner, d.cfg.Store, d.store.root != nil))
		}
		return false, err
	}
	return made, d.records.remember(f)
}

// configure makes the server fill the archive, unless the server already archives for another purpose: then the driver copies
// the log.
func (d *Driver) configure(ctx context.Context, c session.Conn, f facts) (changes []string, restart bool, err error) {
	if d.cfg.Inside != nil {
		return nil, false, nil
	}
	ours := f.FileCommand == d.archive.command()
	taken := f.ArchiveLibrary != "" || f.FileCommand != "" && !ours && f.FileCommand != placeholder
	if taken {
		return []string{"The server archives its log for somebody else, which stays so; a copy of it is made besides."}, false, nil
	}
	if !ours {
		changes = append(changes, "archive_command was set, by ALTER SYSTEM.")
		if err := c.Run(ctx, "ALTER SYSTEM SET archive_command = "+literal(d.archive.command())); err != nil {
			return nil, false, err
		}
	}
	if f.ArchiveMode == "off" {
		restart = true
		changes = append(changes, "archive_mode was set to on, by ALTER SYSTEM; it counts once the server has been restarted.")
		if err := c.Run(ctx, "ALTER SYSTEM SET archive_mode = on"); err != nil {
			return nil, false, err
		}
	}
	return changes, restart, c.Reload(ctx)
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// placeholder is the archive_command, a program that does nothing, while archive_mode is on but the driver does not need it.
const placeholder = "true"

// Disable takes the cluster out of physical mode: it resets the server's settings, and removes everything that is stored for
// the cluster, checkpoints included. If Enable switched archiving on, archiving ends with the server's next restart. Nothing is
// archived until then, and a call of Disable after the restart resets the last setting.
func (d *Driver) Disable(ctx context.Context) (changes []string, restartNeeded bool, err error) {
	const op = "disable physical mode"
	changes, restartNeeded, err = d.leave(ctx, op)
	if err != nil {
		return changes, restartNeeded, err
	}
	d.bases.taking.Lock()
	defer d.bases.taking.Unlock()
	err = d.Do(ctx, op, func() error {
		if err := Purge(d.cfg.StateDir); err != nil {
			return err
		}
		return makeFolders(d.cfg.StateDir)
	})
	if err != nil {
		return changes, restartNeeded, err
	}
	return append(changes, fmt.Sprintf("%s was removed, with all checkpoints of the cluster.", d.cfg.Store)), restartNeeded, nil
}

// Release does the same as Disable, but keeps the stored snapshots. They can be restored again after the cluster is enabled for
// the same app.
func (d *Driver) Release(ctx context.Context) (changes []string, restartNeeded bool, err error) {
	return d.leave(ctx, "release cluster")
}

// leave resets the server, unless a restore is under way. It keeps everything that is stored.
func (d *Driver) leave(ctx context.Context, op string) (changes []string, restart bool, err error) {
	d.bases.taking.Lock()
	defer d.bases.taking.Unlock()
	err = d.Do(ctx, op, func() error {
		plans, err := d.records.switches()
		if i := slices.IndexFunc(plans, func(p plan) bool { return p.There() }); err == nil && i >= 0 {
			err = errs.New(errs.Busy, "", "restore %s is under way", plans[i].ID).WithHint("finish it first")
		}
		if _, gone := os.Lstat(d.cfg.DataDir); err != nil || errors.Is(gone, fs.ErrNotExist) {
			return err // without a cluster there are no settings to reset
		}
		if changes, restart, err = d.reset(ctx); err == nil {
			d.left = true
		}
		return err
	})
	return changes, restart, err
}

// reset saves all log until now, and undoes the changes that Enable made to the server.
func (d *Driver) reset(ctx context.Context) (changes []string, restart bool, err error) {
	c, err := d.server.connect(ctx)
	if err != nil {
		return nil, false, err
	}
	defer c.Close()
	f, err := d.server.inspect(ctx, c)
	if err != nil {
		return nil, false, err
	}
	if err := d.archive.saveAll(ctx, c, f); err != nil {
		return nil, false, err
	}
	if f.FileCommand == d.archive.command() || f.FileCommand == placeholder {
		if f.ArchiveMode == "off" {
			changes = append(changes, "archive_command was reset.")
			err = c.Run(ctx, "ALTER SYSTEM RESET archive_command")
		} else {
			restart = true
			changes = append(changes, "archive_mode was reset, which counts once the server has been restarted; archive_command does nothing until then.")
			err = c.Run(ctx, "ALTER SYSTEM SET archive_command = "+literal(placeholder))
		}
		if err == nil {
			err = c.Run(ctx, "ALTER SYSTEM RESET archive_mode")
		}
		if err == nil {
			err = c.Reload(ctx)
		}
	}
	if f, e := d.server.inspect(ctx, c); err == nil && e == nil && f.Slot {
		changes = append(changes, fmt.Sprintf("The replication slot %q was dropped.", slot))
		err = c.Run(ctx, dropSlot)
	}
	d.marks.hangUp()
	return changes, restart, err
}

// Purge removes everything that is stored for the cluster with this StateDir, whether the cluster was released or no longer
// exists. The server must have stopped archiving into the store.
func Purge(stateDir string) error {
	const op = "remove what is stored of cluster"
	switch w, err := known.WardOf(stateDir); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return errs.Wrap(errs.Failed, op, err)
	default:
		ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
		defer cancel()
		// A command that the server's archiver began before may still write a file into the store.
		err := pgserver.Await(ctx, func() (bool, error) {
			err := dropStore(ctx, privsep.User{UID: w.UID, GID: w.GID}, w.Store, w.Apart)
			if errors.Is(err, unix.ENOTEMPTY) {
				return false, nil
			}
			return true, err
		})
		if err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
	}
	return errs.Wrap(errs.Failed, op, os.RemoveAll(stateDir))
}
