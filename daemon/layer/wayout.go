package layer

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"mulligan/daemon/isolate"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// resolvConf is where programs read by whom names are resolved.
const resolvConf = "/etc/resolv.conf"

// resolver writes the resolv.conf(5) of a fork with a way out to its state folder. at is the file that it covers; "": the host's serves the
// fork too.
func resolver(state string) (from, at string, err error) {
	host, err := os.ReadFile(resolvConf)
	if errors.Is(err, os.ErrNotExist) {
		return "", "", nil // there is nothing that could be covered
	}
	if err != nil {
		return "", "", err
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", "", err
	}
	var own []netip.Addr
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr())
		}
	}
	text := isolate.ResolvConf(host, own)
	if text == nil {
		return "", "", nil
	}
	if at, err = filepath.EvalSymlinks(resolvConf); err != nil {
		return "", "", err
	}
	from = filepath.Join(state, "run", "resolv.conf")
	if err := os.MkdirAll(filepath.Dir(from), 0o700); err != nil {
		return "", "", err
	}
	// A fork that runs has this file open by its place, so it is written as it is. Whoever reads it meanwhile asks again.
	if err := errors.Join(os.WriteFile(from, text, 0o644), os.Chmod(from, 0o644)); err != nil { // whatever the umask is
		return "", "", err
	}
	return from, at, nil
}

// lead gives a fork's place its way out, unless the fork is to have none or the host has no program for it.
func (f forkUnit) lead(p *isolate.Place) error {
	if !f.rec.Forking.HasNetwork() {
		return nil
	}
	if p.Out = isolate.Pasta(); p.Out == "" {
		return nil
	}
	from, at, err := resolver(f.state)
	if err != nil {
		return errs.Wrap(errs.Failed, "let the fork resolve names", err)
	}
	if at != "" {
		p.Binds = append(p.Binds, isolate.Bind{From: from, At: at, File: true})
	}
	return nil
}

// NoWayOut says in a sentence why a fork, described by its record, has no way out; "": it has one, or is not to have one.
func NoWayOut(rec store.App) string {
	if !rec.Forking.HasNetwork() || rec.Fork.Isolation == ipc.IsolationPorts {
		return ""
	}
	return isolate.NoWayOut()
}
