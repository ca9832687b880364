package facts

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"mulligan/errs"
	"mulligan/snap/postgres/physical/jsonrows"
	"mulligan/snap/postgres/physical/pgserver"
)

// Clusters tells the clusters whose states and log are kept from others in the same place.
type Clusters struct {
	Name    string // of the cluster
	Records jsonrows.Folder
}

// The names of the records.
const (
	factsRecord   = "facts"
	systemsRecord = "systems" // the identifiers of those that came from elsewhere
)

// Check returns an error if a server has another cluster than those whose states are kept: one that was made in the same place. Its log files have the
// names of those that are kept.
func (k Clusters) Check(system string) error {
	var f Facts
	if err := k.Records.Get(".", factsRecord, &f); errors.Is(err, fs.ErrNotExist) || err == nil && f.System == system {
		return nil
	} else if err != nil {
		return err
	}
	list, err := k.others()
	if err != nil || slices.Contains(list, system) {
		return err
	}
	return errs.New(errs.Conflict, "", "the server of cluster %s has another cluster (%s) than the one whose states are kept (%s): its data folder was made anew", k.Name, system, f.System).
		WithHint("roll back to a checkpoint, which keeps what is there now, too; or capture what is there from now on with mode = logical")
}

// CheckFolder does the same as Check for the cluster in a data folder whose server is down. A folder whose control file cannot be read passes: the
// server does not start there, and says best why.
func (k Clusters) CheckFolder(ctx context.Context, p pgserver.Programs, dir string) error {
	c, err := p.ReadControl(ctx, dir)
	if err != nil {
		return nil
	}
	return k.Check(c.System)
}

// Known returns the recorded facts of the server.
func (k Clusters) Known() (f Facts, err error) {
	err = k.Records.Get(".", factsRecord, &f)
	if errors.Is(err, fs.ErrNotExist) {
		err = errs.New(errs.Unavailable, "", "the server of cluster %s is down, and nothing was recorded of it yet", k.Name).
			WithHint("start it once")
	}
	return f, err
}

// others lists the further clusters whose states are kept.
func (k Clusters) others() (list []string, err error) {
	err = k.Records.Get(".", systemsRecord, &list)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return list, err
}

// Admit records that a cluster that is about to become the live one is one whose states are kept.
func (k Clusters) Admit(system string) error {
	if k.Check(system) == nil {
		return nil
	}
	list, err := k.others()
	if err != nil {
		return err
	}
	return k.Records.Put(".", systemsRecord, append(list, system))
}
