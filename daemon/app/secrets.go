package app

import (
	"slices"

	"mulligan/appfile"
	"mulligan/ipc"
)

// WithoutSecrets is an app as it may be shown, logged and audited.
func WithoutSecrets(spec ipc.App) ipc.App {
	spec.Databases = slices.Clone(spec.Databases)
	for i := range spec.Databases {
		spec.Databases[i].DSN = appfile.Redact(spec.Databases[i])
	}
	return spec
}

// WithSecrets gives the databases of a change, which may have been read from
// what is shown, their passwords back.
func WithSecrets(dbs, known []ipc.Database) []ipc.Database {
	dbs = slices.Clone(dbs)
	for i, db := range dbs {
		for _, k := range known {
			if k.Name == db.Name && k.Driver == db.Driver && db.DSN == appfile.Redact(k) {
				dbs[i].DSN = k.DSN
			}
		}
	}
	return dbs
}
