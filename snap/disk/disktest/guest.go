package disktest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/testkit"
)

// GuestOptions say what a guest has.
type GuestOptions struct {
	Disks    int    // 1 if 0; at most 2
	SizeMiB  int    // of each disk: 64 if 0
	Blob     int    // MiB of random bytes on the first disk, in the file blob
	Dir      string // for its disks: a folder of its own in the host's if ""
	NoAgent  bool
	NVRAM    bool   // with a variable store, which only a guest that is off can have here
	Devices  string // more XML for <devices>
	Given    string // XML of the disks, which somebody else has made: Disks and what follows from it do not matter
	RAM      int    // MiB: 160 if 0
	KeepBare bool   // the disks hold no filesystem
}

// What a guest has unless its test says otherwise, in MiB.
const (
	usualSize = 64
	usualRAM  = 160
)

// Guest is a defined domain and how to talk to what runs in it.
type Guest struct {
	Name  string
	XML   string   // as it was first defined
	Disks []string // paths of the images it was first defined with
	NVRAM string

	opt  GuestOptions
	made []unix.Timespec // when the disks were written to last
	host *Host
	dir  string
	app  string // path of the socket of its program
	conn net.Conn
	in   *bufio.Reader
}

// NewGuest makes a guest's disks and its definition; the caller defines it.
func (h *Host) NewGuest(t testing.TB, name string, opt GuestOptions) *Guest {
	t.Helper()
	g, err := h.MakeGuest(name, opt)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// MakeGuest is NewGuest outside of a test.
func (h *Host) MakeGuest(name string, opt GuestOptions) (*Guest, error) {
	opt.Disks, opt.SizeMiB, opt.RAM = max(opt.Disks, 1), max(opt.SizeMiB, usualSize), max(opt.RAM, usualRAM)
	initrd, err := h.initrd()
	if err != nil {
		return nil, err
	}
	g := &Guest{Name: name, opt: opt, host: h, dir: filepath.Join(h.Dir, "g-"+name)}
	if opt.Dir == "" {
		opt.Dir = g.dir
	}
	g.app = filepath.Join(g.dir, "app")
	if err := errors.Join(os.MkdirAll(g.dir, 0o755), os.MkdirAll(opt.Dir, 0o755)); err != nil {
		return nil, err
	}
	var disks strings.Builder
	if opt.Given != "" {
		opt.Disks = 0
		disks.WriteString(opt.Given)
	}
	for i := range opt.Disks {
		path := filepath.Join(opt.Dir, fmt.Sprintf("%s-%d.qcow2", name, i))
		blob := 0
		if i == 0 {
			blob = opt.Blob
		}
		if err := makeDisk(path, opt.SizeMiB, blob, opt.KeepBare); err != nil {
			return nil, err
		}
		g.Disks = append(g.Disks, path)
		fmt.Fprintf(&disks, `
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' cache='none' discard='unmap'/>
      <source file='%s'/>
      <target dev='vd%c' bus='virtio'/>
    </disk>`, path, 'a'+i)
	}
	agent, nvram := "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>", ""
	if opt.NoAgent {
		agent = ""
	}
	if opt.NVRAM {
		g.NVRAM = filepath.Join(opt.Dir, name+".nvram")
		nvram = fmt.Sprintf("<loader readonly='yes' type='pflash'>%s</loader><nvram>%s</nvram>", g.NVRAM+".code", g.NVRAM)
	}
	g.XML = fmt.Sprintf(`<domain type='qemu'>
  <name>%s</name>
  <memory unit='MiB'>%d</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type>%s
    <kernel>%s</kernel>
    <initrd>%s</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on no_timer_check lpj=4000000 tsc=reliable cryptomgr.notests nowatchdog</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='custom' match='exact'><model>qemu64</model><feature policy='require' name='rdrand'/></cpu>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>%s
    <serial type='file'><source path='%s/console'/><target port='0'/></serial>
    %s
    <channel type='unix'><source mode='bind' path='%s'/><target type='virtio' name='app.0'/></channel>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <audio id='1' type='none'/>%s
  </devices>
</domain>`, name, opt.RAM, nvram, h.kernel, initrd, disks.String(), g.dir, agent, g.app, opt.Devices)
	g.made, err = stamps(g.Disks)
	return g, err
}

// Fork is a domain that was made from the guest's by somebody else, and has its program's socket at another path.
func (g *Guest) Fork(name, socket string) *Guest {
	return &Guest{Name: name, host: g.host, dir: g.dir, app: socket}
}

// Socket is the path of the socket of the guest's program.
func (g *Guest) Socket() string { return g.app }

// makeDisk makes a qcow2 image with an empty ext4, or one that holds a blob.
func makeDisk(path string, sizeMiB, blobMiB int, bare bool) error {
	raw := path + ".raw"
	script := `set -e; truncate -s "$2"M "$1.raw"
if [ "$4" = bare ]; then :
elif [ "$3" = 0 ]; then mke2fs -q -F -t ext4 -O ^has_journal "$1.raw"
else mkdir "$1.d"; head -c "$3"M /dev/urandom >"$1.d/blob"; mke2fs -q -F -t ext4 -d "$1.d" "$1.raw"; rm -r "$1.d"; fi
qemu-img convert -O qcow2 "$1.raw" "$1"; rm "$1.raw"`
	kind := "fs"
	if bare {
		kind = "bare"
	}
	out, err := exec.Command("sh", "-c", script, "sh", path, fmt.Sprint(sizeMiB), fmt.Sprint(blobMiB), kind).CombinedOutput()
	if err != nil {
		return errors.Join(fmt.Errorf("make a disk: %w: %s", err, out), os.Remove(raw))
	}
	return nil
}

// bootTimeout bounds a boot under emulation, which takes seconds on an idle machine.
const bootTimeout = testkit.Patience

// WaitReady connects to the guest, which has been started, and waits until its
// program answers.
func (g *Guest) WaitReady(t testing.TB) {
	t.Helper()
	if err := g.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Await is WaitReady outside of a test.
func (g *Guest) Await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	g.HangUp()
	err := poll(ctx, func() (err error) {
		g.conn, err = net.Dial("unix", g.app)
		return err
	})
	if err == nil {
		g.in = bufio.NewReader(g.conn)
		_, err = g.Ask("get", bootTimeout)
	}
	if err != nil {
		console, _ := os.ReadFile(filepath.Join(g.dir, "console"))
		return fmt.Errorf("guest %s does not come up: %w\n%s", g.Name, err, console)
	}
	return nil
}

// HangUp drops the connection to the guest.
func (g *Guest) HangUp() {
	if g.conn != nil {
		_ = g.conn.Close()
		g.conn = nil
	}
}

// Ask sends one command to the guest and gives its answer: "set VALUE" writes
// the value to every disk, "get" reads it back from each, "sh SCRIPT" runs it.
func (g *Guest) Ask(command string, timeout time.Duration) (string, error) {
	if g.conn == nil {
		return "", errors.New("not connected")
	}
	if err := g.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(g.conn, command); err != nil {
		return "", err
	}
	for {
		line, err := g.in.ReadString('\n')
		if err != nil {
			return "", fmt.Errorf("%s: %w", command, err)
		}
		if answer, ok := strings.CutPrefix(strings.TrimSpace(line), "ok"); ok {
			return strings.TrimSpace(answer), nil
		}
	}
}

// Do is Ask that must succeed.
func (g *Guest) Do(t testing.TB, command string) string {
	t.Helper()
	answer, err := g.Ask(command, testkit.Patience)
	if err != nil {
		t.Fatalf("guest %s: %v", g.Name, err)
	}
	return answer
}

// Kill kills the guest's QEMU, as a crash of it would.
func (g *Guest) Kill() error {
	pid, err := g.PID()
	if err != nil {
		return err
	}
	return unix.Kill(pid, unix.SIGKILL)
}

// PID is the id of the guest's QEMU.
func (g *Guest) PID() (int, error) { return g.host.pid("run", "qemu", g.Name+".pid") }
