package disktest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap/disk/memoryimage"
	"mulligan/testkit"
)

// savedGuest says what was kept of a guest that had just booted. Beside it lie its memory and its disks.
type savedGuest struct {
	Name, UUID, Host string   // as its definition has them; Host is the folder of its libvirtd
	Disks            []string // paths
}

const (
	aboutName  = "about.json"
	memoryName = "memory"
)

func diskName(i int) string { return fmt.Sprintf("disk%d", i) }

// Boot starts the guest, which is defined and off, and waits until it answers. A guest that was never started goes on where one like it
// had just booted, if one was kept: that takes a tenth of the time. The first of its kind is kept.
func (g *Guest) Boot(t testing.TB) {
	t.Helper()
	if dir := g.kept(); dir != "" && g.fresh() {
		err := g.resume(dir)
		if errors.Is(err, os.ErrNotExist) {
			if err = g.keep(dir); err == nil {
				err = g.resume(dir)
			}
		}
		if err != nil {
			t.Fatalf("guest %s: %v", g.Name, err)
		}
		return
	}
	if _, err := g.virsh("start", g.Name); err != nil {
		t.Fatal(err)
	}
	g.WaitReady(t)
}

// kept is where a guest of this one's kind is kept; "" if it is of a kind that few tests have.
func (g *Guest) kept() string {
	root := kept()
	usual := GuestOptions{Disks: g.opt.Disks, SizeMiB: usualSize, RAM: usualRAM, Dir: g.opt.Dir}
	if root == "" || g.opt != usual {
		return ""
	}
	version, kernel, err := findKernel()
	if err != nil {
		return ""
	}
	xml := strings.ReplaceAll(g.XML, "<name>"+g.Name+"<", "<name><")
	for i, disk := range g.Disks {
		xml = strings.ReplaceAll(xml, disk, diskName(i))
	}
	xml = strings.ReplaceAll(strings.ReplaceAll(xml, g.dir, ""), g.host.Dir, "")
	about := []any{version, guestScript, xml}
	for _, path := range []string{kernel, "/usr/bin/qemu-system-x86_64", "/usr/sbin/libvirtd", "/usr/sbin/qemu-ga"} {
		var st unix.Stat_t
		_ = unix.Stat(path, &st) // there need be no agent
		about = append(about, st.Size, st.Mtim)
	}
	return filepath.Join(filepath.Dir(root), "guests", fmt.Sprintf("%.24x", sha256.Sum256(fmt.Append(nil, about...))))
}

// fresh reports whether the guest has the disks that it was made with, and nobody has written to them.
func (g *Guest) fresh() bool {
	now, err := stamps(g.Disks)
	if err != nil || !slices.Equal(now, g.made) {
		return false
	}
	list, err := g.virsh("domblklist", g.Name)
	if err != nil {
		return false
	}
	lines := strings.Split(list, "\n")
	for i, line := range lines {
		if f := strings.Fields(line); len(lines) != len(g.Disks) || len(f) != 2 || f[1] != g.Disks[i] {
			return false
		}
	}
	return true
}

// stamps are what a write changes of files.
func stamps(paths []string) (list []unix.Timespec, err error) {
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return nil, err
		}
		list = append(list, st.Mtim)
	}
	return list, nil
}

// keep boots the guest and keeps it, switched off, in dir, which appears as a whole.
func (g *Guest) keep(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	ctx, cancel := context.WithTimeout(context.Background(), bootTimeout)
	defer cancel()
	if _, err := g.virsh("start", g.Name); err != nil {
		return err
	}
	if err := g.Await(ctx); err != nil {
		return err
	}
	g.HangUp()
	uuid, err := g.virsh("domuuid", g.Name)
	if err == nil {
		_, err = g.virsh("save", g.Name, filepath.Join(temp, memoryName))
	}
	for i, disk := range g.Disks {
		if err == nil {
			err = copyFile(disk, filepath.Join(temp, diskName(i)))
		}
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(savedGuest{g.Name, uuid, g.host.Dir, g.Disks})
	if err == nil {
		err = os.WriteFile(filepath.Join(temp, aboutName), text, 0o644)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(temp, dir); err != nil && !exists(dir) { // another may have been faster
		return err
	}
	return nil
}

// resume lets the guest go on as the one in dir.
func (g *Guest) resume(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, aboutName))
	if err != nil {
		return err
	}
	var was savedGuest
	if err := json.Unmarshal(text, &was); err != nil {
		return err
	}
	uuid, err := g.virsh("domuuid", g.Name)
	if err != nil {
		return err
	}
	for i, disk := range g.Disks {
		if err := copyFile(filepath.Join(dir, diskName(i)), disk); err != nil {
			return err
		}
	}
	memory := filepath.Join(g.dir, memoryName)
	defer os.Remove(memory)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	err = memoryimage.Copy(ctx, filepath.Join(dir, memoryName), memory, func(definition string) (string, error) {
		return g.rename(definition, was, uuid)
	})
	if err != nil {
		return err
	}
	if _, err := g.virsh("restore", memory); err != nil {
		return err
	}
	return g.Await(ctx)
}

// rename makes the definition of the guest that was kept one of this guest.
func (g *Guest) rename(definition string, was savedGuest, uuid string) (string, error) {
	var changes [][2]string
	for i, disk := range was.Disks {
		changes = append(changes, [2]string{"'" + disk + "'", "'" + g.Disks[i] + "'"})
	}
	changes = append(changes, [][2]string{
		{"<name>" + was.Name + "</name>", "<name>" + g.Name + "</name>"},
		{"<uuid>" + was.UUID + "</uuid>", "<uuid>" + uuid + "</uuid>"},
		{was.Host + "/g-" + was.Name + "/", g.dir + "/"},
		{was.Host + "/", g.host.Dir + "/"},
	}...)
	for _, change := range changes {
		if !strings.Contains(definition, change[0]) {
			return "", fmt.Errorf("the definition of the guest that was kept lacks %s", change[0])
		}
		definition = strings.ReplaceAll(definition, change[0], change[1])
	}
	return definition, nil
}

// virsh runs virsh on the guest's host.
func (g *Guest) virsh(args ...string) (string, error) {
	out, err := exec.Command("virsh", append([]string{"-q", "-c", g.host.URI}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("virsh %q: %w: %s", args, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

func copyFile(from, to string) error {
	out, err := exec.Command("cp", "--sparse=always", "--reflink=auto", from, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
