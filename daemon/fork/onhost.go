package fork

import (
	"context"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/dotenv"
	"mulligan/daemon/fork/collide"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// isolate chooses how a fork is kept apart from its parent: as the parent is from its own, as the settings say, or as the kernel allows.
func (s *Service) isolate(was store.App, f *ipc.Fork) error {
	f.Isolation = was.Forking.Isolation
	if was.Fork != nil {
		f.Isolation = was.Fork.Isolation
	}
	if f.Isolation != ipc.IsolationPorts {
		if err := s.apps.CanIsolate(was); err == nil {
			f.Isolation = ipc.IsolationNamespace
		} else if f.Isolation == ipc.IsolationNamespace {
			return (&errs.Error{Kind: errs.Unsupported, Message: "this host lets the daemon make no namespaces", Err: err}).
				WithHint("run mulligand as root, or allow user namespaces; or let forks have ports of their own: `mulligan app set fork.isolation=ports`")
		} else {
			f.Isolation = ipc.IsolationPorts
			f.Notes = append(f.Notes, "The fork runs on the host, on ports of its own, because this host lets the daemon make no namespaces.")
		}
	}
	if f.Isolation == ipc.IsolationPorts && !was.Forking.HasNetwork() {
		return errs.New(errs.Unsupported, "", "a fork without a network needs namespaces, and this one would run on the host").
			WithHint("leave out --no-network, and set fork.network=true; or let forks have namespaces")
	}
	if f.Isolation == ipc.IsolationPorts && was.Unit != "" {
		return errs.New(errs.Unsupported, "", "the app is run by the unit %s, and forks of units need namespaces", was.Unit).
			WithHint("let mulligan run it: `mulligan app set --app %s run=COMMAND`", was.Slug)
	}
	return nil
}

// onHost sets what a fork on the host has for itself: its ports, and the variables that lead to them and to its databases. What would
// certainly collide with the parent is refused. set has further variables.
func (s *Service) onHost(ctx context.Context, was store.App, rec *store.App, set map[string]string) error {
	f := rec.Fork
	acc, err := s.apps.AccountOf(was)
	if err != nil {
		return err
	}
	texts, err := dotenv.Read(ctx, acc.User(), was.Workspace, was.Forking.Dotenv)
	if err != nil {
		return err
	}
	values := dotenv.Values(texts)
	if was.Fork != nil {
		for name, value := range was.Fork.Env {
			values[name] = value
		}
	}
	holds, err := collide.Ports(was.App, values)
	if err != nil {
		return err
	}
	f.Env, f.Ports = map[string]string{}, nil
	taken := map[string]bool{}
	for _, name := range was.Forking.Ports {
		address, err := s.freeAddress(taken)
		if err != nil {
			return err
		}
		taken[address] = true
		f.Ports = append(f.Ports, ipc.ForkPort{Port: holds[name], Address: address, Variable: name})
		f.Env[name] = portOf(address)
	}
	for _, db := range rec.Databases {
		if value, ok := databaseValue(was, *rec, db, values[db.Env]); ok {
			f.Env[db.Env] = value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if _, own := f.Env[name]; own {
			return errs.New(errs.Invalid, "", "the variable %s says where something of the fork's own is, and cannot be set", name).
				WithHint("leave it out, or take it out of fork.ports or database.env of the app")
		}
		f.Env[name] = set[name]
	}
	rec.Health = checkedAt(was.Health, f.Ports)
	if len(was.Run) > 0 && len(f.Ports) == 0 {
		f.Notes = append(f.Notes, "No variable is named that holds a port of the app (fork.ports): if the app listens at a fixed port, a fork cannot run beside it.")
	}
	return nil
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address) // the daemon has made it
	return port
}

// databaseValue returns what a database's variable says in a fork on the host, in the form that it has in the parent. ok is false
// where the variable is not known, or says the same in both.
func databaseValue(was, rec store.App, db ipc.Database, value string) (text string, ok bool) {
	if db.Env == "" || db.Driver != "sqlite" {
		return "", false
	}
	if value == "" {
		_, rel := layer.PlaceOf(rec.Workspace, db.DSN)
		return filepath.Join(rec.Workspace, rel), true
	}
	text = collide.ReplacePath(value, was.Workspace, rec.Workspace)
	return text, text != value
}

// checkedAt is a health check that asks at the fork's port.
func checkedAt(h *ipc.Health, ports []ipc.ForkPort) *ipc.Health {
	if h == nil || h.URL == "" {
		return h
	}
	u, err := url.Parse(h.URL)
	if err != nil {
		return h
	}
	next := *h
	for _, p := range ports {
		if u.Port() == strconv.Itoa(p.Port) {
			u.Host = p.Address
			next.URL = u.String()
			break
		}
	}
	return &next
}

// settle makes a fork on the host, which has the files of cp, independent of its parent: it replaces the lines of its dotenv files, looks for what
// else leads to the parent, makes the result the fork's first checkpoint, and starts the fork.
func (s *Service) settle(ctx context.Context, parent, a *app.App, cp store.Checkpoint, req ipc.ForkRequest) error {
	lines, err := s.replaceLines(ctx, parent, a)
	if err != nil {
		return err
	}
	if len(lines) > 0 {
		if err := s.supersede(ctx, a.Rec().ID, cp); err != nil {
			return err
		}
	}
	return s.start(ctx, a, req)
}

// start starts a new fork that is to be started.
func (s *Service) start(ctx context.Context, a *app.App, req ipc.ForkRequest) error {
	if req.NoStart || a.Unit() == nil {
		return nil
	}
	if err := s.startFork(ctx, a); err != nil {
		return err
	}
	if a.Rec().Health != nil {
		_ = s.apps.CheckHealth(ctx, a) // one that is not well is a fork all the same
	}
	return nil
}

// supersede makes the present state of a fork its first checkpoint, in place of cp.
func (s *Service) supersede(ctx context.Context, id ipc.AppID, cp store.Checkpoint) error {
	req := ipc.CreateRequest{Notes: *cp.Notes, Pinned: cp.Pinned, Quiesce: ipc.QuiesceNone}
	if _, err := s.checkpoints.Create(ctx, accounts.Self(), string(id), req); err != nil {
		return err
	}
	return s.forget(ctx, id, cp.ID)
}

// forget deletes a checkpoint of a new fork.
func (s *Service) forget(ctx context.Context, id ipc.AppID, cp ipc.CheckpointID) error {
	if err := s.store.SetPinned(ctx, id, cp, false); err != nil {
		return err
	}
	return s.checkpoints.Delete(ctx, accounts.Self(), string(id), cp)
}

func (s *Service) startFork(ctx context.Context, a *app.App) error {
	release, err := s.apps.AcquireBrief(ctx, a, "fork")
	if err != nil {
		return err
	}
	defer release()
	return s.apps.StartUnit(ctx, a)
}

// replaceLines replaces the lines of a new fork's dotenv files. Its record has both, the parent's and the fork's, before.
func (s *Service) replaceLines(ctx context.Context, parent, a *app.App) (lines []ipc.DotenvLine, err error) {
	release, err := s.apps.AcquireBrief(ctx, a, "fork")
	if err != nil {
		return nil, err
	}
	defer release()
	rec, was := a.Rec(), parent.Rec()
	acc, err := s.apps.AccountOf(rec)
	if err != nil {
		return nil, err
	}
	files := rec.Forking.Dotenv
	texts, err := dotenv.Read(ctx, acc.User(), rec.Workspace, files)
	if err != nil {
		return nil, err
	}
	lines = dotenv.Lines(files, texts, func(variable, value string) (string, bool) {
		if slices.ContainsFunc(rec.Databases, func(db ipc.Database) bool { return db.Env == variable }) {
			return collide.ReplacePath(value, was.Workspace, rec.Workspace), true
		}
		i := slices.IndexFunc(rec.Fork.Ports, func(p ipc.ForkPort) bool { return p.Variable == variable })
		if i < 0 {
			return "", false
		}
		return portOf(rec.Fork.Ports[i].Address), true
	})
	if err := s.apps.ChangeFork(ctx, a, func(f *ipc.Fork) { f.Dotenv = lines }); err != nil {
		return nil, err
	}
	if err := s.opt.Failpoint.At("fork: dotenv lines noted"); err != nil {
		return nil, err
	}
	if err := dotenv.Replace(ctx, acc.User(), rec.Workspace, lines, false); err != nil {
		return nil, err
	}
	if err := s.opt.Failpoint.At("fork: dotenv lines replaced"); err != nil {
		return nil, err
	}
	look := collide.Search{Folder: rec.Workspace, Parent: was.Workspace}
	for _, p := range rec.Fork.Ports {
		if p.Port != 0 {
			look.Ports = append(look.Ports, p.Port)
		}
	}
	found, err := collide.Find(ctx, acc.User(), look)
	if err != nil {
		return nil, err
	}
	return lines, s.apps.ChangeFork(ctx, a, func(f *ipc.Fork) { f.Notes = append(slices.Clone(f.Notes), found...) })
}

// lend stops a fork and puts its parent's lines into its dotenv files, where they differ, so that the parent can be taken to its state.
// begin puts the fork's back, and starts it if it ran.
func (s *Service) lend(ctx context.Context, a *app.App) (begin func() error, err error) {
	acc, err := s.apps.AccountOf(a.Rec())
	if err != nil {
		return func() error { return nil }, err
	}
	replace := func(parents bool) error {
		return dotenv.Replace(ctx, acc.User(), a.Rec().Workspace, a.Rec().Fork.Dotenv, parents)
	}
	again, err := s.pause(ctx, a)
	begin = func() error { return errs.Also(replace(false), again()) }
	if err == nil {
		err = replace(true)
	}
	if err == nil {
		err = s.opt.Failpoint.At("keep: dotenv lines put back")
	}
	return begin, err
}
