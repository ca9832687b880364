package doctor

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"strings"

	"mulligan/ipc"
)

// libvirt looks for what VM disks need. The daemon speaks to libvirt by its
// library, with its own rights; here it is looked at with the caller's.
func (e *exam) libvirt(ctx context.Context) {
	wanted := needed(e.any(func(a ipc.App) bool { return a.Domain != "" }))
	if e.glob("/usr/lib/*/libvirt.so.0", "/usr/lib64/libvirt.so.0", "/usr/lib/libvirt.so.0", "/usr/local/lib/libvirt.so.0") {
		e.add("host", "libvirt library", OK, "libvirt.so.0 is there", "")
	} else {
		e.add("host", "libvirt library", wanted, "no libvirt.so.0: apps with a VM need it", "apt-get install libvirt0")
	}
	if path := program("qemu-img"); path != "" {
		e.add("host", "qemu-img", OK, path, "")
	} else {
		e.add("host", "qemu-img", wanted, "not in PATH: apps with a VM need it", "apt-get install qemu-utils")
	}
	uris := map[string]bool{}
	for _, a := range e.apps {
		if a.Domain != "" {
			uris[uri(a)] = true
			e.domain(ctx, a)
		}
	}
	if len(uris) == 0 {
		uris["qemu:///system"] = true
	}
	for u := range uris {
		e.libvirtd(u, wanted)
	}
}

func uri(a ipc.App) string {
	if a.URI == "" {
		return "qemu:///system"
	}
	return a.URI
}

// libvirtd dials the daemon of a URI.
func (e *exam) libvirtd(uri string, wanted State) {
	name := "libvirt " + uri
	sockets := []string{e.Root + "/run/libvirt/virtqemud-sock", e.Root + "/run/libvirt/libvirt-sock"}
	u, err := url.Parse(uri)
	switch {
	case err == nil && u.Query().Get("socket") != "":
		sockets = []string{u.Query().Get("socket")}
	case err != nil || u.Host != "" || u.Path != "/system":
		e.add("host", name, OK, "it is not this host's own: not looked at", "")
		return
	}
	for _, s := range sockets {
		switch err := reach("unix", s); {
		case err == nil:
			e.add("host", name, OK, "it answers on "+s, "")
			return
		case errors.Is(err, os.ErrPermission) && e.hostMode():
			e.add("host", name, OK, s+" is there, and for root, whose daemon uses it", "")
			return
		case errors.Is(err, os.ErrPermission):
			e.add("host", name, wanted, s+" does not let you in", "sudo usermod -aG libvirt $USER, and log in anew")
			return
		}
	}
	remedy := "apt-get install libvirt-daemon-system"
	if e.glob("/usr/sbin/libvirtd", "/usr/sbin/virtqemud") {
		remedy = "systemctl start libvirtd"
	}
	e.add("host", name, wanted, "nothing answers: apps with a VM need it", remedy)
}

// domain asks virsh, where there is one, for an app's VM and its agent.
func (e *exam) domain(ctx context.Context, a ipc.App) {
	name := "VM " + a.Domain
	virsh := program("virsh")
	if virsh == "" {
		e.add("host", name, Advice, "not looked at: there is no virsh", "apt-get install libvirt-clients")
		return
	}
	ask := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, virsh, append([]string{"-q", "-c", uri(a)}, args...)...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	switch state, err := ask("domstate", a.Domain); {
	case err != nil:
		e.add("host", name, Problem, "virsh finds no such VM: "+lastLine(state), "see `virsh -c "+uri(a)+" list --all`, and `mulligan app show "+a.Slug+"`")
	case state != "running":
		e.add("host", name, OK, "it is "+state+"; its guest agent is not asked", "")
	default:
		if out, err := ask("qemu-agent-command", a.Domain, `{"execute":"guest-ping"}`); err != nil {
			e.add("host", name, Advice, "it runs, and its guest agent does not answer, so its filesystems are not frozen for a checkpoint: "+lastLine(out),
				"in the guest: apt-get install qemu-guest-agent; in its definition: a channel org.qemu.guest_agent.0")
			return
		}
		e.add("host", name, OK, "it runs, and its guest agent answers", "")
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
