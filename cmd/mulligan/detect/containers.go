package detect

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"mulligan/appfile"
	"mulligan/ipc"
)

// ContainerArguments are the arguments of `mulligan app set` for what of the app is in containers, each with a space before it: the unit, its
// engine, volumes, and databases that are reached in their containers.
func (f Findings) ContainerArguments(app ipc.App) string {
	text := " unit=" + app.Unit
	if app.Engine != "" {
		text += " engine=" + app.Engine
	}
	var volumes []string
	for _, v := range app.Volumes {
		volumes = append(volumes, v.Name)
	}
	if len(volumes) > 0 {
		text += " volumes=" + strings.Join(volumes, ",")
	}
	for _, db := range app.Databases {
		if f.inside(db) { // harmless for one that is there already
			text += " database=" + appfile.Redact(db)
		}
	}
	return text
}

// WithoutContainers returns the app without its containers, and without those of its databases that cannot be reached without the help of a
// container engine. A database that is not among the findings was named by a person, and stays.
func (f Findings) WithoutContainers(ctx context.Context, app ipc.App) ipc.App {
	app.Unit, app.Engine, app.Volumes = "", "", nil
	app.Databases = slices.DeleteFunc(slices.Clone(app.Databases), func(db ipc.Database) bool { return f.inside(db) && !knownHost(ctx, db) })
	return app
}

// inside reports whether a database is one of the findings that are reached in their containers.
func (f Findings) inside(db ipc.Database) bool {
	return slices.ContainsFunc(f.Databases, func(found Database) bool { return found.Inside && found.Driver == db.Driver && found.DSN == db.DSN })
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
