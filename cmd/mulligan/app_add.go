package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"mulligan/appfile"
	"mulligan/cmd/mulligan/values"
	"mulligan/errs"
	"mulligan/ipc"
)

const appAddLong = `Register an app, from an app file or from flags.

A database SPEC is [NAME=]sqlite:PATH (a path in the workspace, or an absolute one),
[NAME=]postgres://…, [NAME=]mysql://… or [NAME=]redis://….

Behind the # of a Postgres URL stands how it is captured, in the URL's own syntax:
mode=logical (dumps; the default), or mode=physical with data_dir, the cluster's data
folder, and unit, the systemd unit that serves it: then a checkpoint is a mark in the
server's log, and a rollback takes the whole cluster back. Without unit the daemon stops
and starts the server itself, by pg_ctl, as the folder's owner. mode=auto with data_dir is
physical where that is possible. On a host only root names units, and folders that are
not the app's owner's. What that changes in the server's configuration is said in notes;
a restart may be needed once.

Where the app runs in containers of Docker or Podman, --unit is compose:PROJECT, with the
name that "docker compose ls" shows, or container:NAME, and --volume names the volumes to
be captured: by the names of the compose file, or the engine's. Only who may use the
engine may name its containers. They are stopped and started, and never made anew. A
database in one of them needs no port on the host: name the service as its host, as in
postgres://shop:pw@db:5432/shop. There, mode=physical needs neither data_dir nor unit, but
a daemon that runs as root.

--run is for a host without systemd: a command that the daemon starts, in the
workspace, and stops. ` + values.CommandHelp + `

` + appFieldsHelp

type appAddCmd struct {
	*cli
	file, slug, dir   string
	unit, domain, run string
	uri, engine       string
	volumes           []string
	dbs               []string
	health            string
}

func newAppAdd(c *cli) *cobra.Command {
	f := &appAddCmd{cli: c}
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Register an app",
		Long:  appAddLong,
		Example: "  mulligan app add --file shop.toml\n" +
			"  mulligan app add --slug shop --dir /srv/shop --unit shop.service --db sqlite:data/shop.db\n" +
			"  mulligan app add --slug shop --dir /srv/shop --unit shop.service \\\n" +
			"    --db 'postgres:///shop?host=/run/postgresql#mode=physical&data_dir=/var/lib/postgresql/15/main&unit=postgresql@15-main.service'\n" +
			"  mulligan app add --slug shop --dir . --unit compose:shop --volume uploads --db postgres://shop:pw@127.0.0.1:5432/shop\n" +
			"  mulligan app add --slug shop --dir . --run './server --port 8080' --health http://127.0.0.1:8080/healthz",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return f.register(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&f.file, "file", "", "an app file (TOML)")
	cmd.Flags().StringVar(&f.slug, "slug", "", "the app's short name")
	cmd.Flags().StringVar(&f.dir, "dir", "", "its workspace folder")
	cmd.Flags().StringVar(&f.unit, "unit", "", "what runs it: a systemd unit, compose:PROJECT or container:NAME")
	cmd.Flags().StringVar(&f.engine, "engine", "", "for containers: the `SOCKET` of their engine (default: Docker's or Podman's, where they are)")
	cmd.Flags().StringArrayVar(&f.volumes, "volume", nil, "for containers: a volume (`NAME`) that is captured too; may be repeated")
	cmd.Flags().StringVar(&f.run, "run", "", "the command that runs it, if no unit does (`'COMMAND ARG…'`)")
	cmd.Flags().StringVar(&f.domain, "domain", "", "its libvirt domain (a VM), whose qcow2 disks are captured too")
	cmd.Flags().StringVar(&f.uri, "uri", "", "libvirt's `URI` (default qemu:///system)")
	cmd.Flags().StringArrayVar(&f.dbs, "db", nil, "a database (`SPEC`); may be repeated")
	cmd.Flags().StringVar(&f.health, "health", "", "a `URL` that answers 2xx when the app works")
	return cmd
}

// check returns an error for flags that exclude each other.
func (f *appAddCmd) check(cmd *cobra.Command) error {
	if f.file == "" {
		if f.slug == "" || f.dir == "" {
			return usage(cmd, "--slug and --dir are needed, or --file")
		}
		return nil
	}
	for _, name := range []string{"slug", "dir", "unit", "engine", "volume", "run", "domain", "uri", "db", "health"} {
		if cmd.Flags().Changed(name) {
			return usage(cmd, "--%s and --file exclude each other", name)
		}
	}
	return nil
}

func (f *appAddCmd) register(ctx context.Context) error {
	app, err := f.describe()
	if err != nil {
		return err
	}
	added, err := f.client().AddApp(ctx, app)
	if err != nil {
		return err
	}
	return f.out.PrintApp(added)
}

// describe returns the app that the flags or the app file describe.
func (f *appAddCmd) describe() (ipc.App, error) {
	if f.file != "" {
		return appfile.Load(f.file)
	}
	dir, err := realDir("app add", f.dir)
	if err != nil {
		return ipc.App{}, err
	}
	app := ipc.App{Slug: f.slug, Workspace: dir, Unit: f.unit, Domain: f.domain, URI: f.uri, Engine: f.engine, Retention: ipc.DefaultRetention()}
	if app.Run, err = values.Command(f.run); err != nil {
		return ipc.App{}, err
	}
	for _, name := range f.volumes {
		app.Volumes = append(app.Volumes, ipc.Volume{Name: name})
	}
	if f.health != "" {
		app.Health = &ipc.Health{URL: f.health}
	}
	for _, spec := range f.dbs {
		db, err := appfile.ParseDatabase(spec)
		if err != nil {
			return ipc.App{}, err
		}
		app.Databases = append(app.Databases, db)
	}
	return app, nil
}

// realDir returns dir as an absolute path without symbolic links, which is how
// the daemon knows a workspace.
func realDir(op, dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", errs.Wrap(errs.Invalid, op, err)
	}
	return abs, nil
}
