// Package served copies, measures and removes the data of servers that forks have for themselves, in a folder of a cluster's store.
package served

import (
	"context"
	"path/filepath"
	"strings"

	"mulligan/privsep"
	"mulligan/snap/postgres/own"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
)

// Drop removes the data of such a server, which does not run. A missing folder is no error. It works with the rights
// of the cluster's owner.
func Drop(ctx context.Context, owner privsep.User, folder string) error {
	_, err := asowner.Remove.Call(ctx, owner, []string{folder})
	return err
}

// Keep copies the data that the driver's SeedServer made in the folder, before the server is started, where the copy shares its blocks. Elsewhere
// it copies nothing, and kept is false.
func Keep(ctx context.Context, owner privsep.User, folder, name, as string) (kept bool, err error) {
	if kept, err = asowner.Clones.Call(ctx, owner, filepath.Dir(folder)); err != nil || !kept {
		return false, err
	}
	to := filepath.Join(folder, as)
	if _, err := asowner.Remove.Call(ctx, owner, []string{to}); err != nil {
		return false, err
	}
	if _, err := asowner.Mkdir.Call(ctx, owner, asowner.NewFolder{Path: to}); err != nil {
		return false, err
	}
	data := asowner.ClusterCopy{From: filepath.Join(folder, name, own.ClusterData), To: filepath.Join(to, own.ClusterData), Whole: true}
	_, err = asowner.Copy.Call(ctx, owner, data)
	if err == nil {
		_, err = asowner.Arrange.Call(ctx, owner, asowner.Arrangement{Dir: to, Sync: true, Files: own.ClusterFiles()})
	}
	return err == nil, err
}

// Measure returns the bytes on disk that Drop would free, whose file system can share blocks.
func Measure(ctx context.Context, owner privsep.User, folder, name string) (int64, error) {
	store := filepath.Dir(folder)
	home := asowner.Home{Store: store, Data: strings.TrimSuffix(store, pgserver.StoreOf(""))}
	return asowner.Measure.Call(ctx, owner, asowner.Measurement{Home: home, Gone: []string{filepath.Join(folder, name)}, Shared: true})
}
