package detect

import (
	"context"
	"net"
	"net/url"
	"strings"
	"time"

	"mulligan/appfile"
	"mulligan/ipc"
)

// ContainerArguments are the arguments of `mulligan app set` for what is in containers, each with a space before it: volumes, and
// databases that are reached in their containers.
func (f Findings) ContainerArguments() (text string) {
	if len(f.Project.Volumes) > 0 {
		text = " volumes=" + strings.Join(f.Project.Volumes, ",")
	}
	for _, db := range f.Databases {
		if db.Inside { // harmless for one that is there already
			text += " database=" + appfile.Redact(db.Database)
		}
	}
	return text
}

// WithoutContainers returns the databases that can be reached without the help of a container engine.
func (f Findings) WithoutContainers(ctx context.Context) (list []ipc.Database) {
	for _, db := range f.Databases {
		if !db.Inside || knownHost(ctx, db.Database) {
			list = append(list, db.Database)
		}
	}
	return list
}

// knownHost reports whether the name of a database's host means something here: so it is when this process runs in a container of the same project.
func knownHost(ctx context.Context, db ipc.Database) bool {
	u, err := url.Parse(db.DSN)
	if err != nil {
		return false
	}
	const patience = 3 * time.Second
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = net.DefaultResolver.LookupHost(short, u.Hostname())
	return err == nil
}
