package appfile

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"mulligan/ipc"
)

var (
	slugSyntax  = newSyntax(`^[a-z0-9][a-z0-9-]{0,62}$`)
	ownerSyntax = newSyntax(`^([0-9]{1,10}|[A-Za-z_][A-Za-z0-9_.-]{0,254}\$?|guest:[A-Za-z0-9][A-Za-z0-9._-]{0,127})$`)
	// The names that systemd.unit(5) allows. The unit of an app is a service, or a target that groups several.
	unitSyntax = newSyntax(`^[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]{0,240}\.(service|target)$`)
	// What Docker accepts as the name of a container, and of a volume. A unit that is containers is a compose project or one container.
	containersSyntax = newSyntax(`^(compose|container):[a-zA-Z0-9][a-zA-Z0-9_.-]{0,200}$`)
	volumeSyntax     = newSyntax(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,200}$`)
	// The names of variables that a shell can set.
	variableSyntax = newSyntax(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	domainSyntax   = newSyntax(`^[A-Za-z0-9_.+:@][A-Za-z0-9_.+:@-]{0,254}$`)
)

func check(app ipc.App) *fault {
	for _, rule := range []func(ipc.App) *fault{
		checkNames, checkWorkspace, checkFollow, checkProcess, checkContainers, checkHealth, checkRetention, checkForking, checkRemoting, checkDatabases,
	} {
		if f := rule(app); f != nil {
			return f
		}
	}
	return nil
}

func checkNames(app ipc.App) *fault {
	switch {
	case app.Slug == "":
		return &fault{key: "slug", what: "the app has no slug", hint: `name it: slug = "shop"`}
	case !slugSyntax.MatchString(app.Slug):
		return &fault{key: "slug", what: fmt.Sprintf("%q is not a slug", app.Slug),
			hint: "use lower-case letters, digits and -, at most 63, beginning with a letter or digit"}
	case app.Owner != "" && !ownerSyntax.MatchString(app.Owner):
		return &fault{key: "owner", what: fmt.Sprintf("%q is not a user's name", app.Owner), hint: "name a user of this host, or its uid, or guest:ID"}
	case app.Domain != "" && !domainSyntax.MatchString(app.Domain):
		return &fault{key: "domain", what: fmt.Sprintf("%q is not a libvirt domain's name", app.Domain), hint: "`virsh list --all` shows the names"}
	case app.Domain == "" && app.URI != "":
		return &fault{key: "uri", what: "uri is set, and domain is not", hint: "name the domain, or drop uri"}
	case app.Domain == "" && app.Shutdown != "":
		return &fault{key: "shutdown", what: "shutdown is set, and domain is not", hint: "name the domain, or drop shutdown"}
	case unprintable(app.URI):
		return &fault{key: "uri", what: "uri is not one line", hint: `write it like uri = "qemu:///system"`}
	case app.URI != "" && !isLocalURI(app.URI):
		return &fault{key: "uri", what: fmt.Sprintf("uri %q is not the address of a libvirt on this host", app.URI),
			hint: `a domain's disks are captured where they are: uri = "qemu:///system", or "qemu:///system?socket=/PATH"`}
	case app.Shutdown != "" && app.Shutdown != "clean" && app.Shutdown != "destroy":
		return &fault{key: "shutdown", what: fmt.Sprintf("%q is not a way to shut a domain down", app.Shutdown), hint: "use clean (the guest is asked) or destroy"}
	}
	return nil
}

// isLocalURI reports whether a libvirt URI names no other host and no transport to one. The driver also asks libvirt after it
// has connected.
func isLocalURI(uri string) bool {
	u, err := url.Parse(uri)
	if err != nil || u.Host != "" {
		return false
	}
	_, transport, _ := strings.Cut(u.Scheme, "+")
	return transport == "" || transport == "unix"
}

func checkWorkspace(app ipc.App) *fault {
	const hint = "give the app's folder as an absolute path"
	w := app.Workspace
	switch {
	case w == "":
		return &fault{key: "workspace", what: "the app has no workspace", hint: hint}
	case !path.IsAbs(w) || path.Clean(w) != w || unprintable(w):
		return &fault{key: "workspace", what: fmt.Sprintf("workspace %q is not a plain absolute path", w), hint: hint + `, without "..", "//" or a / at its end`}
	case w == "/":
		return &fault{key: "workspace", what: "workspace / is the whole host", hint: hint}
	}
	for _, e := range app.Exclude {
		if e == "" || unprintable(e) {
			return &fault{key: "exclude", what: fmt.Sprintf("exclude pattern %q is not one line of a .gitignore", e), hint: `write patterns like "*.log"`}
		}
	}
	return nil
}

func checkProcess(app ipc.App) *fault {
	switch {
	case app.Unit != "" && len(app.Run) > 0:
		return &fault{key: "run", what: "the app has both a unit and a run command", hint: "keep the one that starts the app"}
	case app.Unit != "" && !unitSyntax.MatchString(app.Unit) && !IsContainers(app.Unit):
		return &fault{key: "unit", what: fmt.Sprintf("%q is neither a systemd service's name nor that of containers", app.Unit),
			hint: `write it in full: unit = "shop.service", "compose:shop" for a compose project, or "container:shop-web-1"`}
	case len(app.Run) > 0 && !isCommand(app.Run):
		return &fault{key: "run", what: "run is not a command", hint: `write program and arguments apart: run = ["./server", "--port", "8080"]`}
	}
	return nil
}

// IsContainers reports whether a unit's name is that of containers: "compose:PROJECT" or "container:NAME".
func IsContainers(unit string) bool { return containersSyntax.MatchString(unit) }

func checkContainers(app ipc.App) *fault {
	switch {
	case app.Engine != "" && (!path.IsAbs(app.Engine) || path.Clean(app.Engine) != app.Engine || unprintable(app.Engine) || len(app.Engine) > 107):
		return &fault{key: "engine", what: fmt.Sprintf("engine %.120q is not the path of a socket", app.Engine), hint: `write it like engine = "/run/docker.sock", with at most 107 bytes`}
	case !IsContainers(app.Unit) && (app.Engine != "" || len(app.Volumes) > 0):
		return &fault{key: "volumes", what: "engine or volumes are set, and the unit is not containers", hint: `name them: unit = "compose:shop"; or leave out engine and volumes`}
	case IsContainers(app.Unit) && app.Domain != "":
		return &fault{key: "domain", what: "the app has both a domain and containers", hint: "register them as two apps"}
	}
	seen := map[string]bool{}
	for _, v := range app.Volumes {
		if !volumeSyntax.MatchString(v.Name) || seen[v.Name] {
			return &fault{key: "volumes", what: fmt.Sprintf("%.120q is not a volume's name, or is listed twice", v.Name), hint: "docker volume ls shows the names"}
		}
		seen[v.Name] = true
	}
	return nil
}

func checkHealth(app ipc.App) *fault {
	h := app.Health
	if h == nil {
		return nil
	}
	switch {
	case (h.URL == "") == (len(h.Command) == 0):
		return &fault{key: "health", what: "a health check is either a url or a command", hint: "set exactly one of the two"}
	case h.URL != "" && !isWebURL(h.URL):
		return &fault{key: "health.url", what: "the health url is not an http or https URL", hint: "write it like http://127.0.0.1:8080/healthz"}
	case len(h.Command) > 0 && !isCommand(h.Command):
		return &fault{key: "health.command", what: "the health command is not a command", hint: `write program and arguments apart: command = ["curl", "-f", "…"]`}
	}
	if h.Timeout == "" {
		return nil
	}
	if d, err := time.ParseDuration(h.Timeout); err != nil || d <= 0 {
		return &fault{key: "health.timeout", what: fmt.Sprintf("health timeout %q is not a duration", h.Timeout), hint: `write a duration like "10s" or "1m30s"`}
	}
	return nil
}

func checkRetention(app ipc.App) *fault {
	r := app.Retention
	for _, n := range []struct {
		key   string
		value int64
	}{
		{"keep_last", int64(r.KeepLast)}, {"daily_days", int64(r.DailyDays)},
		{"keep_turns", int64(r.KeepTurns)}, {"keep_safety", int64(r.KeepSafety)}, {"max_bytes", r.MaxBytes},
	} {
		if n.value < 0 {
			return &fault{key: "retention." + n.key, what: fmt.Sprintf("%s is negative (%d)", n.key, n.value), hint: "use 0 or more"}
		}
	}
	if r.ExpireAfter == "" {
		return nil
	}
	if d, err := time.ParseDuration(r.ExpireAfter); err != nil || d < 0 {
		return &fault{key: "retention.expire_after", what: fmt.Sprintf("expire_after %q is not a duration", r.ExpireAfter),
			hint: `write hours, as in "720h" for 30 days; "0" means never`}
	}
	return nil
}

func checkForking(app ipc.App) *fault {
	f := app.Forking
	if f.Dir != "" && (path.Clean(f.Dir) != f.Dir || unprintable(f.Dir)) {
		return &fault{key: "fork.dir", what: fmt.Sprintf("the forks' folder %q is not a plain path", f.Dir), hint: `write it like "/srv/forks" or "../forks", without "//" or a / at its end`}
	}
	seen := map[int]bool{}
	for _, port := range f.Expose {
		if port < 1 || port > 65535 || seen[port] {
			return &fault{key: "fork.expose", what: fmt.Sprintf("%d is not a port, or is listed twice", port), hint: "list ports of the app, from 1 to 65535, as in expose = [3000, 3001]"}
		}
		seen[port] = true
	}
	if fault := checkOnHost(f); fault != nil || f.ExpireAfter == "" {
		return fault
	}
	if d, err := time.ParseDuration(f.ExpireAfter); err != nil || d < 0 {
		return &fault{key: "fork.expire_after", what: fmt.Sprintf("expire_after %q of forks is not a duration", f.ExpireAfter), hint: `write hours, as in "24h"; "0" means never`}
	}
	return nil
}

func checkFollow(app ipc.App) *fault {
	if app.Auto && app.Follow != nil && !*app.Follow {
		return &fault{key: "follow", what: "automatic checkpoints need the files to be followed", hint: "remove follow = false, or set auto = false"}
	}
	return nil
}

func checkRemoting(app ipc.App) *fault {
	for key, n := range map[string]int{"remote.keep_last": app.Remoting.KeepLast, "remote.daily_days": app.Remoting.DailyDays} {
		if n < 0 {
			return &fault{key: key, what: fmt.Sprintf("%s is negative (%d)", key, n), hint: "use 0 or more"}
		}
	}
	switch app.Remoting.Auto {
	case "", ipc.RemoteAll, ipc.RemotePinned, ipc.RemoteDaily:
		return nil
	}
	return &fault{key: "remote.auto", what: fmt.Sprintf("%q does not say which checkpoints go to the app's remotes", app.Remoting.Auto), hint: "use all, pinned or daily; without it, checkpoints are sent by hand"}
}

// checkOnHost checks what is said of forks without namespaces.
func checkOnHost(f ipc.Forking) *fault {
	if f.Isolation != "" && f.Isolation != ipc.IsolationNamespace && f.Isolation != ipc.IsolationPorts {
		return &fault{key: "fork.isolation", what: fmt.Sprintf("%q is not a way to keep forks apart", f.Isolation),
			hint: "use namespace or ports; without it, namespaces are used where the kernel allows them"}
	}
	for i, name := range f.Ports {
		if !variableSyntax.MatchString(name) || slices.Contains(f.Ports[:i], name) {
			return &fault{key: "fork.ports", what: fmt.Sprintf("%q is not a variable's name, or is listed twice", name), hint: `list the variables that hold the app's ports: ports = ["PORT"]`}
		}
	}
	for i, file := range f.Dotenv {
		if path.Clean(file) != file || path.IsAbs(file) || file == ".." || strings.HasPrefix(file, "../") || unprintable(file) || slices.Contains(f.Dotenv[:i], file) {
			return &fault{key: "fork.dotenv", what: fmt.Sprintf("%q is not the path of a file in the workspace, or is listed twice", file), hint: `list paths relative to the workspace: dotenv = [".env"]`}
		}
	}
	return nil
}

func checkDatabases(app ipc.App) *fault {
	seen := map[string]bool{}
	for i, db := range app.Databases {
		if f := checkDatabase(db); f != nil {
			return f.in(i)
		}
		if inside := strings.HasPrefix(app.Unit, "compose:") || strings.HasPrefix(app.Unit, "container:"); db.Mode == "physical" && db.DataDir == "" && !inside { // a container's volume is found
			return fault{key: "mode", what: fmt.Sprintf("database %s: mode physical needs the cluster's data folder", db.Name), hint: clusterHint}.in(i)
		}
		if db.Env != "" && !variableSyntax.MatchString(db.Env) {
			return fault{key: "env", what: fmt.Sprintf("%q is not a variable's name", db.Env), hint: `name the variable that tells the app where the database is: env = "DATABASE_URL"`}.in(i)
		}
		if seen[db.Name] {
			return fault{key: "name", what: fmt.Sprintf("two databases are called %q", db.Name), hint: "give each a name of its own"}.in(i)
		}
		seen[db.Name] = true
	}
	return nil
}

func isCommand(argv []string) bool {
	for _, a := range argv {
		if strings.ContainsRune(a, 0) {
			return false
		}
	}
	return len(argv) > 0 && strings.TrimSpace(argv[0]) != ""
}

func isWebURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}

func unprintable(s string) bool { return strings.ContainsAny(s, "\x00\n\r") }
