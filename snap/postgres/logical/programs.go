package logical

import (
	"context"
	"path/filepath"

	"mulligan/privsep"
	"mulligan/snap/postgres/pgbin"
)

// programs returns the folder of the server's own programs, which may have pg_dump too. It returns "" if the server runs on
// another host or in a container, or if users other than root and the app's owner could replace pg_dump or pg_restore there:
// the two run with the owner's rights, and the server may belong to somebody else.
func (c *conn) programs(ctx context.Context, owner privsep.User) string {
	var pid int
	if c.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()").Scan(&pid) != nil {
		return ""
	}
	dir := pgbin.ServerFolder(pid)
	if dir == "" {
		return ""
	}
	for _, name := range []string{"pg_dump", "pg_restore"} {
		if !pgbin.Guarded(filepath.Join(dir, name), owner) {
			return ""
		}
	}
	return dir
}
