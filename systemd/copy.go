package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/durable"
	"mulligan/errs"
)

// Copy is a unit that runs what another service runs, in namespaces of its own: it sees a folder at another path, and has its own
// /tmp, /dev/shm, IPC objects and loopback network. The manager keeps the files of copies in memory: they are gone after a reboot.
type Copy struct {
	Of, Name    string // full names of services. Name begins with [CopyPrefix]; an instance of a template stays one
	Description string
	Folder, At  string // the folder that the copy sees at the path At
	Ports       []CopyPort
	Binds       []CopyBind
	Servers     []CopyServer
	Inside      *CopyInside // nil: no program can be run inside of the copy's namespaces
	// Out is the command line (systemd.service(5)) of a program that root runs in the copy's network namespace to lead out of it. Its first
	// process ends when that is done, and another one stays. Empty: the copy reaches nothing but its own loopback.
	Out []string
}

// CopyBind is a further folder of the host that the copy sees at another path.
type CopyBind struct{ From, At string }

// CopyServer is a port of the copy's loopback network that leads to a Unix socket of the host.
type CopyServer struct {
	Port           int
	Folder, Socket string // the folder of the socket, and the socket's name in it
	UID, GID       int    // the user that connects to the socket
}

// CopyInside is a program that runs in the copy's namespaces when somebody connects to a Unix socket. It inherits the listening socket
// as descriptor 3, and runs with no_new_privs.
type CopyInside struct {
	Program, Arg0 string
	Socket        string // only the user may connect to it
	UID, GID      int
}

// CopyPort is a port of the copy's loopback network that can be reached from the host.
type CopyPort struct {
	Port    int
	Address string // of the host: "127.0.0.1:4000"
}

// CopyPrefix is what the names of all copies and their helpers begin with.
const CopyPrefix = "mulligan-fork-"

// runtimeUnits is the folder in which systemd.unit(5) has units that are gone after a reboot.
const runtimeUnits = "/run/systemd/system"

// proxy forwards connections of a socket unit to an address in its own network namespace.
const proxy = "/lib/systemd/systemd-socket-proxyd"

// original holds the properties of a service that decide whether and how it can be copied.
type original struct {
	fragment          string
	dropIns           []string
	triggers          []string
	runtime, state    []string // folders below /run and /var/lib that the manager makes for it
	cache, logs       []string
	pidFile, busName  string
	in, out, err      string
	rootDir, rootDisk string
	network           string
	environment       []environmentFile
}

// environmentFile is a file of variables that the manager reads before it starts a service.
type environmentFile struct {
	Path    string
	Missing bool // it may be missing
}

// CheckCopy returns an error of kind errs.Unsupported if a service cannot have copies, because they would share with it what both write.
func (m *Manager) CheckCopy(ctx context.Context, of string) error {
	_, err := m.original(ctx, of)
	return err
}

func (m *Manager) original(ctx context.Context, name string) (o original, err error) {
	if !strings.HasSuffix(name, ".service") {
		return o, errs.New(errs.Unsupported, "", "%s is no service, and only services can be forked", name)
	}
	err = m.do(ctx, func(b *bus) error {
		path, err := b.load(ctx, name)
		if err != nil {
			return err
		}
		o = original{}
		for _, p := range []struct {
			iface, name string
			value       any
		}{
			{unitIf, "FragmentPath", &o.fragment}, {unitIf, "DropInPaths", &o.dropIns}, {unitIf, "TriggeredBy", &o.triggers},
			{serviceIf, "RuntimeDirectory", &o.runtime}, {serviceIf, "StateDirectory", &o.state},
			{serviceIf, "CacheDirectory", &o.cache}, {serviceIf, "LogsDirectory", &o.logs},
			{serviceIf, "PIDFile", &o.pidFile}, {serviceIf, "BusName", &o.busName},
			{serviceIf, "StandardInput", &o.in}, {serviceIf, "StandardOutput", &o.out}, {serviceIf, "StandardError", &o.err},
			{serviceIf, "RootDirectory", &o.rootDir}, {serviceIf, "RootImage", &o.rootDisk},
			{serviceIf, "NetworkNamespacePath", &o.network}, {serviceIf, "EnvironmentFiles", &o.environment},
		} {
			if err := b.get(ctx, path, p.iface, p.name, p.value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return o, m.failure("look at", name, err)
	}
	return o, o.check(name)
}

// check refuses a service whose copies would share something with it that both write.
func (o original) check(name string) error {
	why := ""
	folders := slices.Concat(o.runtime, o.state, o.cache, o.logs)
	socket := slices.IndexFunc(o.triggers, func(t string) bool { return !strings.HasSuffix(t, ".timer") })
	file := slices.IndexFunc([]string{o.in, o.out, o.err}, func(s string) bool {
		return strings.HasPrefix(s, "file") || strings.HasPrefix(s, "append") || strings.HasPrefix(s, "truncate")
	})
	switch {
	case o.fragment == "":
		why = "has no file of its own"
	case len(folders) > 0:
		why = "has the folder " + folders[0] + " outside of the workspace (RuntimeDirectory, StateDirectory, CacheDirectory, LogsDirectory)"
	case socket >= 0:
		why = "is started by " + o.triggers[socket]
	case o.pidFile != "":
		why = "has the PIDFile " + o.pidFile
	case o.busName != "":
		why = "has the BusName " + o.busName
	case file >= 0:
		why = "has its input or output in a file (StandardInput, StandardOutput, StandardError)"
	case o.rootDir != "" || o.rootDisk != "":
		why = "has a root folder of its own (RootDirectory, RootImage)"
	case o.network != "":
		why = "has the NetworkNamespacePath " + o.network
	default:
		return nil
	}
	return errs.New(errs.Unsupported, "", "the unit %s %s, which a fork would share", name, why).
		WithHint("take that out of the unit, or let mulligan run the app's command")
}

// WriteCopy writes the files of a copy and has the manager read them. The copy is not started. Writing it again is fine.
func (m *Manager) WriteCopy(ctx context.Context, c Copy) error {
	const op = "copy unit"
	o, err := m.original(ctx, c.Of)
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	files, err := m.copyFiles(c, o)
	if err != nil {
		return errs.Wrap(errs.Failed, op+" "+c.Of, err)
	}
	written := false
	for path, text := range files {
		path = m.opts.Root + filepath.Join(runtimeUnits, path)
		if now, err := os.ReadFile(path); err == nil && string(now) == text {
			continue
		}
		written = true
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return errs.Wrap(errs.Failed, op+" "+c.Of, err)
		}
		if err := durable.WriteFile(path, []byte(text), 0o644); err != nil {
			return errs.Wrap(errs.Failed, op+" "+c.Of, err)
		}
	}
	if !written {
		return nil
	}
	return m.Reload(ctx)
}

// copyFiles returns the unit files of a copy: those of the original, and what the copy has of its own, which is read last.
func (m *Manager) copyFiles(c Copy, o original) (map[string]string, error) {
	paths := []string{c.Folder, c.At}
	for _, b := range c.Binds {
		paths = append(paths, b.From, b.At)
	}
	for _, s := range c.Servers {
		paths = append(paths, s.Folder)
	}
	if c.Inside != nil {
		paths = append(paths, c.Inside.Program, c.Inside.Socket)
	}
	for _, path := range paths {
		if !filepath.IsAbs(path) || strings.ContainsAny(path, ":\"'\\\n\r") {
			return nil, errs.New(errs.Unsupported, "", "the path %q cannot be written in a unit file", path).WithHint("choose one without : \" ' \\")
		}
	}
	file, dropIns := fileName(c.Name), c.Name+".d/"
	files := map[string]string{}
	text, err := os.ReadFile(m.opts.Root + o.fragment)
	if err != nil {
		return nil, err
	}
	files[file] = string(text)
	for i, path := range o.dropIns {
		if filepath.Base(filepath.Dir(path)) == "service.d" {
			continue // holds for every service
		}
		text, err := os.ReadFile(m.opts.Root + path)
		if err != nil {
			return nil, err
		}
		files[fmt.Sprintf("%s50-%03d.conf", dropIns, i)] = string(text)
	}
	files[dropIns+"zz-mulligan.conf"] = c.own(o)
	for _, p := range c.Ports {
		socket, service := c.front(p)
		name := c.frontName(p)
		files[name+".socket"], files[name+".service"] = socket, service
	}
	for _, v := range c.Servers {
		files[c.serverName(v)+".socket"], files[c.serverName(v)+".service"] = c.server(v)
	}
	if len(c.Out) > 0 {
		files[outName(c.Name)] = c.out()
	}
	if c.Inside != nil {
		files[insideName(c.Name)+".socket"], files[insideName(c.Name)+".service"] = c.inside()
	}
	return files, nil
}

// fileName returns the name of the file of a service: an instance has that of its template.
func fileName(unit string) string {
	prefix, _, found := strings.Cut(unit, "@")
	if !found {
		return unit
	}
	return prefix + "@.service"
}

// own is the drop-in that gives the copy namespaces.
func (c Copy) own(o original) string {
	var b strings.Builder
	unit := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	unit("[Unit]\nDescription=%s", quoteUnit(c.Description))
	for _, socket := range c.sockets() {
		unit("Requires=%[1]s\nAfter=%[1]s", socket) // a copy that lacks an address does not start
	}
	unit("%s%s", c.wantsOut(), c.joins(c.Name))
	unit("[Service]\n%sTemporaryFileSystem=/dev/shm:mode=1777", apart)
	unit("%s", c.binds())
	// The manager reads these files outside of the copy's namespaces.
	if len(o.environment) > 0 {
		unit("EnvironmentFile=")
	}
	for _, f := range o.environment {
		optional := ""
		if f.Missing {
			optional = "-"
		}
		if below, ok := strings.CutPrefix(f.Path, c.At+"/"); ok {
			f.Path = filepath.Join(c.Folder, below)
		}
		unit("EnvironmentFile=%s%s", optional, quoteUnit(f.Path))
	}
	return b.String()
}

// apart are the settings of units that share namespaces. They are the same in all of them, because the first that is started makes the
// namespaces for all.
const apart = "PrivateNetwork=yes\nPrivateTmp=yes\nPrivateIPC=yes\n"

// joins makes a unit share the namespaces of the copy. Every unit names all others: the manager looks up namespaces by the name of the
// unit that made them.
func (c Copy) joins(unit string) string {
	var b strings.Builder
	for _, other := range c.members() {
		if other != unit {
			fmt.Fprintf(&b, "JoinsNamespaceOf=%s\n", other)
		}
	}
	return b.String()
}

// members are the units that may make the copy's namespaces.
func (c Copy) members() []string {
	list := []string{c.Name}
	for _, v := range c.Servers {
		list = append(list, c.serverName(v)+".socket")
	}
	if c.Inside != nil {
		list = append(list, insideName(c.Name)+".service")
	}
	if len(c.Out) > 0 {
		list = append(list, outName(c.Name))
	}
	return list
}

// sockets are the socket units that come up with the copy.
func (c Copy) sockets() (list []string) {
	for _, p := range c.Ports {
		list = append(list, c.frontName(p)+".socket")
	}
	for _, v := range c.Servers {
		list = append(list, c.serverName(v)+".socket")
	}
	if c.Inside != nil {
		list = append(list, insideName(c.Name)+".socket")
	}
	return list
}

// binds puts the copy's folders in their places.
func (c Copy) binds() string {
	var b strings.Builder
	for _, bind := range append([]CopyBind{{c.Folder, c.At}}, c.Binds...) {
		fmt.Fprintf(&b, "BindPaths=\"%s\":\"%s\"\n", quoteUnit(bind.From), quoteUnit(bind.At))
	}
	return b.String()
}

// front returns the units that lead from an address of the host to a port of the copy: the socket, and what serves it in the copy's
// network. Both go when the copy is stopped.
func (c Copy) front(p CopyPort) (socket, service string) {
	socket = fmt.Sprintf("[Unit]\nDescription=Port %d of %s\nPartOf=%s\n[Socket]\nListenStream=%s\n", p.Port, quoteUnit(c.Description), c.Name, p.Address)
	service = fmt.Sprintf(`[Unit]
Description=Port %[1]d of %[2]s
PartOf=%[3]s
After=%[3]s
%[5]s[Service]
ExecStart=%[4]s 127.0.0.1:%[1]d
User=nobody
%[6]sNoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
`, p.Port, quoteUnit(c.Description), c.Name, proxy, c.joins(""), apart)
	return socket, service
}

func (c Copy) frontName(p CopyPort) string {
	return fmt.Sprintf("%s-port-%d", copyBase(c.Name), p.Port)
}

// server returns the units that lead from a port of the copy's network to a Unix socket of the host: the socket in the copy's network,
// and what serves it.
func (c Copy) server(v CopyServer) (socket, service string) {
	name := c.serverName(v)
	socket = fmt.Sprintf("[Unit]\nDescription=Server at port %d of %s\nPartOf=%s\n%s[Socket]\n%sListenStream=127.0.0.1:%[1]d\n",
		v.Port, quoteUnit(c.Description), c.Name, c.joins(name+".socket"), apart)
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		// The manager adds ::1 to a new network itself. The kernel checks it like any other address, in the background, and refuses to
		// bind to it until then, unless it is told not to mind.
		socket += fmt.Sprintf("FreeBind=yes\nListenStream=[::1]:%d\n", v.Port)
	}
	service = fmt.Sprintf(`[Unit]
Description=Server at port %d of %s
PartOf=%s
[Service]
ExecStart=%s /tmp/server/%s
User=%d
Group=%d
TemporaryFileSystem=/tmp
BindPaths="%s":/tmp/server
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
`, v.Port, quoteUnit(c.Description), c.Name, proxy, quoteUnit(v.Socket), v.UID, v.GID, quoteUnit(v.Folder))
	return socket, service
}

func (c Copy) serverName(v CopyServer) string {
	return fmt.Sprintf("%s-server-%d", copyBase(c.Name), v.Port)
}

// inside returns the units of the program that runs in the copy's namespaces.
func (c Copy) inside() (socket, service string) {
	in := c.Inside
	socket = fmt.Sprintf("[Unit]\nDescription=Entrance of %s\nPartOf=%s\nStartLimitIntervalSec=0\n[Socket]\nListenStream=%s\nSocketMode=0600\nSocketUser=%d\nSocketGroup=%d\n",
		quoteUnit(c.Description), c.Name, quoteUnit(in.Socket), in.UID, in.GID)
	requires := c.wantsOut() // and the servers, also where the copy does not run
	for _, v := range c.Servers {
		requires += fmt.Sprintf("Requires=%[1]s.socket\nAfter=%[1]s.socket\n", c.serverName(v))
	}
	service = fmt.Sprintf("[Unit]\nDescription=Commands inside of %s\nPartOf=%s\nStartLimitIntervalSec=0\n%s%s[Service]\nExecStart=@%s %s\nUser=%d\nGroup=%d\nNoNewPrivileges=yes\n%sTemporaryFileSystem=/dev/shm:mode=1777\nBindReadOnlyPaths=\"%s\"\n%s",
		quoteUnit(c.Description), c.Name, requires, c.joins(insideName(c.Name)+".service"), quoteUnit(in.Program), in.Arg0, in.UID, in.GID, apart, quoteUnit(in.Program), c.binds())
	return socket, service
}

// out returns the unit that leads out of the copy's network. If it failed, as where the host is not connected, systemd forgets it with the copy.
func (c Copy) out() string {
	var words []string
	for _, w := range c.Out {
		words = append(words, quoteUnit(w))
	}
	return fmt.Sprintf("[Unit]\nDescription=Way out of %s\nPartOf=%s\nStartLimitIntervalSec=0\nCollectMode=inactive-or-failed\n%s[Service]\nType=forking\nIgnoreSIGPIPE=no\nExecStart=%s\nTimeoutStartSec=20\nNoNewPrivileges=yes\n%s",
		quoteUnit(c.Description), c.Name, c.joins(outName(c.Name)), strings.Join(words, " "), apart)
}

// outName is the name of the unit that leads out of a copy's network.
func outName(copy string) string { return copyBase(copy) + "-out.service" }

// wantsOut makes a unit start after the way out. Where there is none for once, as on a host that is not connected, the unit runs without.
func (c Copy) wantsOut() string {
	if len(c.Out) == 0 {
		return ""
	}
	return fmt.Sprintf("Wants=%[1]s\nAfter=%[1]s\n", outName(c.Name))
}

// insideName is what the names of the units of a copy's [CopyInside] begin with.
func insideName(copy string) string { return copyBase(copy) + "-inside" }

// OpenInside makes sure that one can connect to the socket of a copy's [CopyInside].
func (m *Manager) OpenInside(ctx context.Context, copy string) error {
	return m.Unit(insideName(copy) + ".socket").Start(ctx)
}

// CloseInside ends the program of a copy's [CopyInside] with everything that it started, and the copy's other helpers. The copy does not
// run.
func (m *Manager) CloseInside(ctx context.Context, copy string) error {
	files, err := m.filesOf(copy)
	if err != nil {
		return err
	}
	slices.Reverse(files) // sockets before the services that they start
	for _, file := range files {
		isUnit := strings.HasSuffix(file, ".socket") || strings.HasSuffix(file, ".service") // a crash leaves temporary files too
		if !isUnit || !strings.HasPrefix(file, copyBase(copy)+"-") {
			continue
		}
		if err := m.Unit(file).Stop(ctx); err != nil && errs.KindOf(err) != errs.NotFound {
			return err
		}
	}
	return nil
}

// filesOf returns the names of a copy's files, in their order.
func (m *Manager) filesOf(copy string) (names []string, err error) {
	list, err := os.ReadDir(m.opts.Root + runtimeUnits)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range list {
		if rest, ok := strings.CutPrefix(e.Name(), copyBase(copy)); ok && ofCopy(rest) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// copyBase is what the names of all files of a copy begin with.
func copyBase(name string) string {
	base, _, _ := strings.Cut(strings.TrimSuffix(name, ".service"), "@")
	return base
}

// quoteUnit escapes the one character that has a meaning everywhere in a unit file.
func quoteUnit(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// ofCopy reports whether rest, what follows a copy's base in the name of a file, makes it one of the copy's files.
func ofCopy(rest string) bool {
	for _, begin := range []string{".", "@", "-port-", "-server-", "-inside.", "-out."} {
		if strings.HasPrefix(rest, begin) {
			return true
		}
	}
	return false
}

// RemoveCopy removes the files of a copy that is stopped. Where there are none, that is fine.
func (m *Manager) RemoveCopy(ctx context.Context, name string) error {
	const op = "remove unit"
	base := copyBase(name)
	if !strings.HasPrefix(base, CopyPrefix) || len(base) == len(CopyPrefix) {
		return errs.New(errs.Internal, op, "%s is not the name of a copy", name)
	}
	files, err := m.filesOf(name)
	if err != nil {
		return errs.Wrap(errs.Failed, op+" "+name, err)
	}
	for _, file := range files {
		if err := os.RemoveAll(filepath.Join(m.opts.Root+runtimeUnits, file)); err != nil {
			return errs.Wrap(errs.Failed, op+" "+name, err)
		}
	}
	if len(files) == 0 {
		return nil
	}
	err = m.do(ctx, func(b *bus) error {
		for _, unit := range append(files, name) {
			b.release(ctx, unit)
		}
		return nil
	})
	if err != nil {
		return m.failure(op, name, err)
	}
	return m.Reload(ctx)
}
