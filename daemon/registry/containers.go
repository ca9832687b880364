package registry

import (
	"context"
	"reflect"
	"slices"

	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
)

// checkContainers finds the containers and volumes of an app, with the caller's rights. Who may use an engine may do everything with its
// containers: so the one right that counts is to connect to its socket, and the daemon needs no list of its own.
func (svc *Service) checkContainers(ctx context.Context, who ipc.Caller, rec *store.App) error {
	if who.Guest != "" {
		return errs.New(errs.Denied, "", "a guest's app can have no containers").WithHint("leave out unit, engine and volumes")
	}
	rec.EngineAs = layer.EngineAsOwner
	if svc.owners.Administers(who) {
		rec.EngineAs = layer.EngineAsRoot
	}
	if err := svc.binder.FindContainers(ctx, rec); err != nil {
		return errs.Wrap(errs.Failed, "unit "+rec.Unit, err)
	}
	for _, other := range svc.apps.Records() {
		if other.ID == rec.ID {
			continue
		}
		theirs := volumesOf(other)
		for dir, name := range volumesOf(*rec) {
			if theirs[dir] != "" {
				return errs.New(errs.Conflict, "", "volume %s belongs to another app, %s", name, other.Slug).WithHint("a volume has one app: leave it out of one of them")
			}
		}
	}
	return nil
}

// volumesOf returns the names of the volumes in which the daemon changes something for an app, by their folders.
func volumesOf(rec store.App) map[string]string {
	all := map[string]string{}
	for _, v := range rec.Volumes {
		all[v.Dir] = v.FullName
	}
	for _, c := range rec.Containers {
		if c.Cluster != nil {
			all[c.Cluster.Folder] = c.Cluster.Volume
		}
	}
	return all
}

// containersChange reports whether the containers of an app have to be looked up anew for its next record.
func containersChange(was, next ipc.App) bool {
	dsns := func(list []ipc.Database) (all []string) {
		for _, db := range list {
			all = append(all, db.Name, db.DSN, db.Mode, db.DataDir)
		}
		return all
	}
	return engine.Names(next.Unit) && (next.Containers == nil || !slices.Equal(dsns(next.Databases), dsns(was.Databases)) || next.Unit != was.Unit || next.Engine != was.Engine || !reflect.DeepEqual(next.Volumes, was.Volumes))
}

// sameContainers keeps what the daemon knows of an app's containers, if a description of it names the same ones.
func sameContainers(spec *ipc.App, was ipc.App) {
	if !engine.Names(spec.Unit) || spec.Unit != was.Unit || spec.Engine != "" && spec.Engine != was.Engine || len(spec.Volumes) != len(was.Volumes) {
		return
	}
	for i, v := range spec.Volumes {
		if v.Name != was.Volumes[i].Name {
			return
		}
	}
	spec.Engine, spec.EngineAs, spec.Volumes, spec.Containers = was.Engine, was.EngineAs, was.Volumes, was.Containers
}
