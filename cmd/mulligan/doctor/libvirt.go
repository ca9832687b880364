package doctor

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"mulligan/ipc"
)

// libvirt checks what the disks of VMs need. The daemon uses libvirt's library
// with its own rights; doctor uses virsh with the caller's.
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

// libvirtd checks that libvirt's daemon at uri accepts connections.
func (e *exam) libvirtd(uri string, wanted State) {
	name := "libvirt " + uri
	sockets := []string{e.Root + "/run/libvirt/virtqemud-sock", e.Root + "/run/libvirt/libvirt-sock"}
	u, err := url.Parse(uri)
	switch {
	case err == nil && u.Query().Get("socket") != "":
		sockets = []string{u.Query().Get("socket")}
	case err != nil || u.Host != "" || u.Path != "/system":
		e.add("host", name, OK, "it is on another host, so it was not checked", "")
		return
	}
	for _, s := range sockets {
		switch err := reach("unix", s); {
		case err == nil:
			e.add("host", name, OK, "it answers on "+s, "")
			return
		case errors.Is(err, os.ErrPermission) && e.hostMode():
			e.add("host", name, OK, s+" is there, for root's daemon alone", "")
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

// virsh runs the program virsh against one URI of libvirt.
type virsh struct{ path, uri string }

func (v virsh) ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, v.path, append([]string{"-q", "-c", v.uri}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// say returns a command for people to type.
func (v virsh) say(args ...string) string { return "virsh -c " + v.uri + " " + strings.Join(args, " ") }

// domain checks an app's VM and its guest agent, if virsh is installed.
func (e *exam) domain(ctx context.Context, a ipc.App) {
	name := "VM " + a.Domain
	v := virsh{program("virsh"), uri(a)}
	if v.path == "" {
		e.add("host", name, Advice, "not checked: virsh is missing", "apt-get install libvirt-clients")
		return
	}
	info, err := v.ask(ctx, "dominfo", a.Domain)
	if err != nil {
		e.add("host", name, Problem, "virsh finds no such VM: "+lastLine(info), "see `"+v.say("list", "--all")+"`, and `mulligan app show "+a.Slug+"`")
		return
	}
	if state := field(info, "State"); state == "running" {
		e.guestAgent(ctx, v, name, a.Domain)
	} else {
		e.add("host", name, OK, "it is "+state+"; its guest agent is not asked", "")
	}
	e.definition(ctx, v, name+" definition", a.Domain, info)
	e.images(ctx, v, name+" images", a.Domain)
}

// field returns what follows "NAME:" on a line of text.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func (e *exam) guestAgent(ctx context.Context, v virsh, name, domain string) {
	out, err := v.ask(ctx, "qemu-agent-command", domain, `{"execute":"guest-ping"}`)
	const so = ", so its filesystems are not frozen for a checkpoint"
	switch {
	case err == nil:
		e.add("host", name, OK, "it runs, and its guest agent answers", "")
	case strings.Contains(out, "not configured"):
		e.add("host", name, Advice, "it runs, and has no channel for a guest agent"+so,
			v.say("edit", domain)+": <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>; then start it anew")
	default:
		e.add("host", name, Advice, "it runs, and its guest agent does not answer"+so+": "+lastLine(out), "in the guest: apt-get install qemu-guest-agent")
	}
}

// definition checks a VM's definition for what makes the daemon refuse it.
func (e *exam) definition(ctx context.Context, v virsh, name, domain, info string) {
	sound := true
	refused := func(finding, remedy string) {
		sound = false
		e.add("host", name, Problem, finding, remedy)
	}
	if field(info, "Persistent") == "no" {
		refused("it is transient: once it is off, it is gone", v.say("dumpxml", domain)+" >vm.xml && "+v.say("define", "vm.xml"))
	}
	if field(info, "Managed save") == "yes" {
		refused("it has a managed save image, which only fits its present disks", v.say("start", domain)+", or "+v.say("managedsave-remove", domain)+", which loses the guest's memory")
	}
	for _, kind := range []string{"snapshot", "checkpoint"} {
		if out, err := v.ask(ctx, kind+"-list", domain, "--name"); err == nil && out != "" {
			names := strings.Fields(out)
			refused("it has "+kind+"s of libvirt's own ("+strings.Join(names, ", ")+"), which do not mix with mulligan's", v.say(kind+"-delete", domain, names[0]))
		}
	}
	if sound {
		e.add("host", name, OK, "it is persistent, and has no snapshots of libvirt's own", "")
	}
}

// images checks the folders of a VM's disks, in which the daemon changes owners of files.
func (e *exam) images(ctx context.Context, v virsh, name, domain string) {
	out, err := v.ask(ctx, "domblklist", domain, "--details")
	if u, e := url.Parse(v.uri); err != nil || e != nil || u.Host != "" {
		return // the VM is on another host
	}
	trusted := []int{0}
	if !e.hostMode() {
		trusted = append(trusted, e.UID)
	}
	caps, _ := v.ask(ctx, "capabilities") // an error leaves QEMU's user unknown
	if m := qemuUser.FindStringSubmatch(caps); m != nil {
		uid, _ := strconv.Atoi(m[1]) // the expression matches digits only
		trusted = append(trusted, uid)
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) >= 4 && f[0] == "network" && f[1] == "disk" {
			e.onCeph(name, f[2])
			return // it has no disks in files
		}
		if len(f) < 4 || f[0] != "file" || f[1] != "disk" {
			continue
		}
		if at, ok := e.writableByOthers(filepath.Dir(strings.Join(f[3:], " ")), trusted); ok {
			e.add("host", name, Problem, "users other than root can replace what is in "+at, "move the images to a folder of root's, like /var/lib/libvirt/images")
			return
		}
	}
	e.add("host", name, OK, "only root can replace them", "")
}

// onCeph checks what the daemon needs for a disk that is not on this host.
func (e *exam) onCeph(name, dev string) {
	if path := program("rbd"); path != "" {
		e.add("host", name, OK, "disk "+dev+" is on the network, and "+path+" is there for Ceph", "")
		return
	}
	e.add("host", name, Problem, "disk "+dev+" is on the network, and the program rbd, which mulligand uses for disks on Ceph, is not in PATH", "apt-get install ceph-common")
}

// qemuUser matches the uid of QEMU's user in libvirt's capabilities.
var qemuUser = regexp.MustCompile(`<baselabel type='qemu'>\+(\d+):`)

// writableByOthers returns the first folder, from dir upwards, that belongs to a user
// outside of trusted or that everybody may write to. A folder that the caller may not stat counts as root's.
func (e *exam) writableByOthers(dir string, trusted []int) (string, bool) {
	for at := dir; ; at = filepath.Dir(at) {
		if fi, err := os.Stat(e.Root + at); err == nil {
			owner := int(fi.Sys().(*syscall.Stat_t).Uid)
			open := fi.Mode()&0o002 != 0 && fi.Mode()&os.ModeSticky == 0
			if open || !slices.Contains(trusted, owner) {
				return at, true
			}
		}
		if at == filepath.Dir(at) {
			return "", false
		}
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
