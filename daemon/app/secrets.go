package app

import (
	"slices"

	"mulligan/appfile"
	"mulligan/ipc"
)

// WithoutSecrets returns the app without its passwords and the values of its forks' variables, for output, logs and the audit trail.
func WithoutSecrets(spec ipc.App) ipc.App {
	spec.Databases = slices.Clone(spec.Databases)
	for i := range spec.Databases {
		spec.Databases[i].DSN = appfile.Redact(spec.Databases[i])
	}
	if f := spec.Fork; f != nil && (len(f.Env) > 0 || len(f.Dotenv) > 0) {
		bare := *f
		bare.Env, bare.Dotenv = nil, slices.Clone(f.Dotenv)
		for i := range bare.Dotenv {
			bare.Dotenv[i].Was, bare.Dotenv[i].Is = "", ""
		}
		spec.Fork = &bare
	}
	return spec
}

// WithSecrets returns dbs with the passwords of known filled in. A client that changes an app may
// send back what it was shown, without passwords.
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
