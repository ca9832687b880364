package fork

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/fork/compose"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// A fork of an app that is a compose project is a project of its own, which the owner's compose tool makes in the fork's folder and does not start. What
// it has made is looked at before anything of it runs; then volumes and databases are brought to the checkpoint.

// blueprint finds out how the project of an app was made, and with what the projects of its forks are to be made.
func blueprint(ctx context.Context, parent *app.App) (b engine.Blueprint, err error) {
	rec := parent.Rec()
	c, ok := parent.Unit().(*layer.Containers)
	if !ok {
		return b, errs.New(errs.Unavailable, "", "the containers of %s cannot be used at present", rec.Slug).WithHint("`mulligan status` says why")
	}
	if b, err = c.Blueprint(ctx, rec.Workspace); err != nil {
		return b, err
	}
	if rec.Fork != nil { // what its containers say was there for a moment only
		b.Files = nil
		for _, file := range rec.Fork.ComposeFiles {
			b.Files = append(b.Files, filepath.Join(rec.Workspace, file))
		}
	}
	if len(rec.Forking.Compose) > 0 {
		b.Tool = rec.Forking.Compose
	}
	return b, nil
}

// serverKinds asks the servers of an app's databases what those of its forks must be like. In containers they are like those of the app by themselves.
func serverKinds(ctx context.Context, parent *app.App) (map[string]string, error) {
	if engine.Names(parent.Rec().Unit) {
		return nil, nil
	}
	return parent.Now.Load().ServerKinds(ctx)
}

// below returns paths relative to a folder in which they are.
func below(folder string, paths []string) (list []string, err error) {
	for _, path := range paths {
		rel, err := filepath.Rel(folder, path)
		if err != nil || !filepath.IsLocal(rel) {
			return nil, errs.New(errs.Unsupported, "", "the compose project was made of %s, which is not in the workspace, and a fork has none of its own", path).
				WithHint("move it into %s, and make the containers anew: docker compose up -d", folder)
		}
		list = append(list, rel)
	}
	return list, nil
}

// checkProject refuses forks of an app in containers that cannot be made.
func (s *Service) checkProject(ctx context.Context, parent *app.App, req *ipc.ForkRequest) error {
	rec := parent.Rec()
	of, err := blueprint(ctx, parent)
	if err != nil {
		return err
	}
	if req.NoNetwork || !rec.Forking.HasNetwork() {
		return errs.New(errs.Unsupported, "", "the containers of a fork have the networks of their compose project, and cannot be without").
			WithHint("leave out --no-network, and set fork.network=true; internal: true of a network in the compose file shuts it off")
	}
	if err := s.mayMake(ctx, rec, of); err != nil {
		return err
	}
	for _, db := range rec.Databases {
		if db.Driver == "sqlite" {
			continue
		}
		at := slices.IndexFunc(rec.Containers, func(c ipc.Container) bool { return slices.Contains(c.Serves, db.Name) })
		if at < 0 {
			return errs.New(errs.Unsupported, "", "the database %s is not in a container of the app, and forks would share it", db.Name).
				WithHint("put its server into the compose project")
		}
		if rec.Containers[at].Cluster != nil {
			return errs.New(errs.Unsupported, "", "the database %s is captured by its log (mode physical), and forks of such databases in containers are not supported yet", db.Name).
				WithHint("use mode = logical, or protect its volume instead")
		}
	}
	return nil
}

// mayMake returns an error if the app's owner could not make a project on the engine that has the app's.
func (s *Service) mayMake(ctx context.Context, rec store.App, of engine.Blueprint) error {
	e, err := s.apps.Projects.Engine(rec)
	if err != nil {
		return err
	}
	defer e.Close()
	about, err := e.About(ctx)
	if errs.KindOf(err) == errs.Denied {
		return errs.New(errs.Denied, "", "root has named the containers of %s, and its owner may not use %s: a fork's are made by the owner's own compose tool", rec.Slug, rec.Engine).
			WithHint("let the owner use the engine (for Docker, by the group of its socket), or do without forks of this app")
	}
	if err != nil {
		return err
	}
	acc, err := s.apps.AccountOf(rec)
	if err != nil {
		return err
	}
	if of.Tool[0] == engine.PodmanCompose && about.UID >= 0 && !acc.User().IsSelf() && about.UID != acc.UID {
		return errs.New(errs.Unsupported, "", "the app was made by %s as root, which its owner cannot do, and which would make a fork's containers with an engine of the owner's", of.Tool[0]).
			WithHint("name a compose tool that works through %s: `mulligan app set 'fork.compose=docker compose'`", rec.Engine)
	}
	return nil
}

// onProject sets what the fork of a compose project has for itself before the project is made: its name, its ports, and the variables that lead its
// commands to it. Until then, the fork's record has no containers.
func (s *Service) onProject(ctx context.Context, parent *app.App, rec *store.App, set map[string]string) error {
	was, f := parent.Rec(), rec.Fork
	of, err := blueprint(ctx, parent)
	if err != nil {
		return err
	}
	project, _, err := engine.ParseName(was.Unit)
	if err != nil {
		return err
	}
	f.Isolation, f.ParentPath, f.Project = ipc.IsolationPorts, rec.Workspace, project+"-fork-"+f.Name
	if f.ComposeFiles, err = below(was.Workspace, of.Files); err != nil {
		return err
	}
	rec.Unit, rec.Volumes, rec.Containers, rec.EngineAs = "", nil, nil, layer.EngineAsOwner
	rec.Databases = slices.DeleteFunc(rec.Databases, func(db ipc.Database) bool { return db.Driver != "sqlite" })
	own := map[string]string{"COMPOSE_PROJECT_NAME": f.Project, "DOCKER_HOST": "unix://" + rec.Engine}
	for name := range own {
		if _, ok := set[name]; ok {
			return errs.New(errs.Invalid, "", "the variable %s leads the fork's commands to its own containers, and cannot be set", name).WithHint("leave it out")
		}
	}
	if err := s.onHost(ctx, was, rec, set); err != nil {
		return err
	}
	maps.Copy(f.Env, own)
	if err := s.projectPorts(of, rec); err != nil {
		return err
	}
	rec.Health = checkedAt(was.Health, f.Ports)
	if h := rec.Health; h != nil && h.URL != "" && h.URL == was.Health.URL {
		f.Notes = append(f.Notes, "The health check is left out: it would ask at an address that no container of the app publishes.")
		rec.Health = nil
	}
	f.Notes = append(f.Notes, s.emptyVolumes(was, of)...)
	f.Notes = append(f.Notes, fmt.Sprintf("Its containers are the compose project %s: `mulligan exec %s -- docker compose …` works on it. In the fork's folder, docker compose without -p may work on the app's.", f.Project, f.Name))
	mine, err := s.apps.Projects.Of(*rec)
	if err != nil {
		return err
	}
	defer mine.Engine.Close()
	return mine.CheckFree(ctx)
}

// projectPorts gives a fork a port of the host for each that the app's containers publish and no variable has one for.
func (s *Service) projectPorts(of engine.Blueprint, rec *store.App) error {
	taken := map[string]bool{}
	for _, p := range rec.Fork.Ports {
		taken[p.Address] = true
	}
	for _, service := range of.Services {
		for _, p := range service.Ports {
			if addressOf(rec.Fork.Ports, p.Host) != "" {
				continue
			}
			address, err := s.freeAddress(taken)
			if err != nil {
				return err
			}
			taken[address] = true
			rec.Fork.Ports = append(rec.Fork.Ports, ipc.ForkPort{Port: p.Host, Address: address})
		}
	}
	return nil
}

// addressOf returns the address that a fork has for a port of the app's; "": it has none.
func addressOf(ports []ipc.ForkPort, port int) string {
	at := slices.IndexFunc(ports, func(p ipc.ForkPort) bool { return p.Port == port })
	if at < 0 {
		return ""
	}
	return ports[at].Address
}

// emptyVolumes says which volumes are empty in a fork.
func (s *Service) emptyVolumes(was store.App, of engine.Blueprint) (notes []string) {
	seen := map[string]bool{}
	for _, v := range was.Volumes {
		seen[v.FullName] = true
	}
	for _, service := range of.Services {
		serves := slices.ContainsFunc(was.Containers, func(c ipc.Container) bool { return len(c.Serves) > 0 && slices.Contains(service.Containers, c.Name) })
		for _, at := range slices.Sorted(maps.Keys(service.Volumes)) {
			if name := service.Volumes[at]; !seen[name] && !serves {
				seen[name] = true
				notes = append(notes, fmt.Sprintf("The volume %s, at %s in the service %s, is not captured: in the fork it begins empty.", name, at, service.Name))
			}
		}
	}
	return notes
}

// restoreProject takes a new fork to its origin whose parent is a compose project.
func (s *Service) restoreProject(ctx context.Context, parent, a *app.App, origin store.Checkpoint, req ipc.ForkRequest) error {
	origin.Pinned = true // what the fork changed is known as long as the fork exists
	notes := "the state of " + string(origin.ID) + " of " + parent.Rec().Slug
	// The compose file is the checkpoint's: so the files come first.
	first, err := s.adopt(ctx, parent, a, origin, notes)
	if err != nil {
		return err
	}
	var whole []string
	for _, l := range a.Layers() {
		whole = append(whole, string(l.Name))
	}
	there, err := s.seed(ctx, parent, a, first, nil)
	if err != nil {
		return err
	}
	if err := s.bringRest(ctx, a, first, there, false); err != nil {
		return err
	}
	lines, err := s.replaceLines(ctx, parent, a)
	if err != nil {
		return err
	}
	if err := s.makeProject(ctx, parent, a); err != nil {
		return err
	}
	cp, err := s.adopt(ctx, parent, a, origin, notes)
	if err != nil {
		return err
	}
	if err := s.forget(ctx, a.Rec().ID, first.ID); err != nil {
		return err
	}
	seeded, err := s.seed(ctx, parent, a, cp, whole)
	if err != nil {
		return err
	}
	if err := s.startServers(ctx, a); err != nil {
		return err
	}
	if err := s.bringRest(ctx, a, cp, append(whole, seeded...), false); err != nil {
		return err
	}
	if len(lines) > 0 {
		if err := s.supersede(ctx, a.Rec().ID, cp); err != nil {
			return err
		}
	}
	return s.start(ctx, a, req)
}

// startServers starts those of a fork's containers that serve databases: their contents come through them.
func (s *Service) startServers(ctx context.Context, a *app.App) error {
	c, ok := a.Unit().(*layer.Containers)
	if !ok || !slices.ContainsFunc(a.Rec().Containers, func(c ipc.Container) bool { return len(c.Serves) > 0 }) {
		return nil
	}
	release, err := s.apps.AcquireBrief(ctx, a, "fork")
	if err != nil {
		return err
	}
	defer release()
	if err := c.StartServers(ctx); err != nil {
		return err
	}
	s.apps.Projects.Await(ctx, a.Now.Load())
	return s.opt.Failpoint.At("fork: servers started")
}

// makeProject has the owner's compose tool make the project of a fork whose files are there, and records what was made.
func (s *Service) makeProject(ctx context.Context, parent, a *app.App) error {
	release, err := s.apps.AcquireBrief(ctx, a, "fork")
	if err != nil {
		return err
	}
	defer release()
	snap.Begin(ctx, "making the containers of the fork")
	rec, was := a.Rec(), parent.Rec()
	of, err := blueprint(ctx, parent)
	if err != nil {
		return err
	}
	if err := s.runCompose(ctx, was, a, of); err != nil {
		return errs.Wrap(errs.Failed, "make the compose project "+rec.Fork.Project, err)
	}
	if err := s.opt.Failpoint.At("fork: project made"); err != nil {
		return err
	}
	mine, err := s.apps.Projects.Of(rec)
	if err != nil {
		return err
	}
	defer mine.Engine.Close()
	var free []int
	for _, p := range rec.Fork.Ports {
		n, err := strconv.Atoi(portOf(p.Address))
		if err != nil {
			return err
		}
		free = append(free, n)
	}
	volumes, err := mine.Check(ctx, of, rec.Workspace, free)
	if err != nil {
		return err
	}
	if err := mine.Settle(ctx); err != nil {
		return err
	}
	fork := *rec.Fork
	if fork.Made, err = mine.Made(ctx); err != nil {
		return err
	}
	rec.Fork, rec.Unit, rec.Volumes = &fork, "compose:"+fork.Project, was.Volumes
	if rec.Databases, err = projectDatabases(was, rec, of); err != nil {
		return err
	}
	if err := s.apps.Projects.Find(ctx, &rec, volumes); err != nil {
		return err
	}
	if err := s.registry.GiveContainers(ctx, a, rec); err != nil {
		return err
	}
	return s.opt.Failpoint.At("fork: project recorded")
}

// projectDatabases returns the databases of a fork of a compose project: those in its folder, and those in its containers.
func projectDatabases(was, rec store.App, of engine.Blueprint) (list []ipc.Database, err error) {
	for _, db := range was.Databases {
		if at := slices.IndexFunc(rec.Databases, func(o ipc.Database) bool { return o.Name == db.Name }); at >= 0 {
			list = append(list, rec.Databases[at])
			continue
		}
		service := ""
		for _, c := range was.Containers {
			if slices.Contains(c.Serves, db.Name) {
				service = of.Serving(c.Name)
			}
		}
		if db.DSN, err = layer.ForkedDSN(db, service, rec.Fork.Ports); err != nil {
			return nil, err
		}
		db.DataDir, db.Unit, db.Mode, db.Chosen, db.Why = "", "", "", "", ""
		list = append(list, db)
	}
	return list, nil
}

// composePatience bounds the work of a compose tool, which may have to fetch an image.
const composePatience = 10 * time.Minute

// maxComposeOutput bounds, in bytes, the kept output of a compose tool.
const maxComposeOutput = 4 << 10

// runCompose runs the compose tool in the fork's folder, with the rights of its owner. It makes containers, volumes and networks, and starts nothing.
func (s *Service) runCompose(ctx context.Context, was store.App, a *app.App, of engine.Blueprint) (err error) {
	rec := a.Rec()
	acc, err := s.apps.AccountOf(rec)
	if err != nil {
		return err
	}
	p := compose.Project{
		Folder: rec.Workspace, Parent: was.Workspace, Files: rec.Fork.ComposeFiles, Label: engine.ForkLabel, ID: string(rec.ID), OneNetwork: of.Tool[0] == engine.PodmanCompose,
	}
	command := append(slices.Clone(of.Tool), "-p", rec.Fork.Project)
	up := []string{"up", "--no-start"}
	var names []string
	for _, service := range of.Services {
		c := compose.Service{Name: service.Name, Image: service.Image}
		for _, port := range service.Ports {
			c.Ports = append(c.Ports, fmt.Sprintf("%s:%d/%s", addressOf(rec.Fork.Ports, port.Host), port.Inside, port.Proto))
		}
		p.Services = append(p.Services, c)
		if n := len(service.Containers); n > 1 {
			up = append(up, "--scale", fmt.Sprintf("%s=%d", service.Name, n))
		}
		names = append(names, service.Name)
	}
	written, err := compose.Write(ctx, acc.User(), p)
	if err != nil {
		return err
	}
	defer func() { err = errs.Also(err, compose.Remove(ctx, acc.User(), rec.Workspace, written)) }()
	if err := s.opt.Failpoint.At("fork: compose files written"); err != nil {
		return err
	}
	for _, name := range written {
		command = append(command, "-f", filepath.Join(rec.Workspace, name))
	}
	env, err := below(was.Workspace, of.EnvFiles)
	if err != nil {
		return err
	}
	for _, name := range env {
		command = append(command, "--env-file", filepath.Join(rec.Workspace, name))
	}
	limited, cancel := context.WithTimeout(ctx, composePatience) // the files are removed with ctx, also when the time is over
	defer cancel()
	ran, err := s.apps.RunInside(limited, a, slices.Concat(command, up, names), maxComposeOutput)
	switch {
	case err != nil:
		return (&errs.Error{Kind: errs.Unavailable, Message: "the compose tool " + strings.Join(of.Tool, " ") + " cannot be run", Err: err}).
			WithHint("install it, or name the one to use: `mulligan app set --app %s 'fork.compose=docker compose'`", was.Slug)
	case ran.Late:
		return errs.New(errs.Failed, "", "%s was not done after %s", strings.Join(of.Tool, " "), composePatience)
	case ran.Status != 0:
		return errs.New(errs.Failed, "", "%s ended with status %d: %s", strings.Join(of.Tool, " "), ran.Status, lastLines(ran.Output)).
			WithHint("what it needs must be in the compose file, in .env, or be set with `mulligan fork --set NAME=VALUE`")
	}
	return nil
}

// lastLines returns the end of an output in one line.
func lastLines(text string) string {
	const shown = 3
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-shown):], "; ")
}
