// Package cephtest starts a real, private Ceph for tests: one monitor and one OSD on the loopback interface, with a pool for RBD
// images, and an S3 gateway where a test asks for it. It takes about 15 seconds of a processor, some 200 MiB of memory and a sparse file of 8 GiB. Three run on a host at a time:
// the next test process waits. It ends with the test's process, however that ends.
package cephtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/testkit"
)

// User is the cephx user that may use RBD images and do nothing else.
const User = "vm"

// Cluster is a running Ceph.
type Cluster struct {
	Dir     string
	Conf    string // path of its ceph.conf, which names the keyring of all users
	Monitor string // port on 127.0.0.1
	Key     string // of User

	lock    *os.File
	daemons []*exec.Cmd
	gateway *Gateway
	names   atomic.Int64
}

var shared struct {
	sync.Mutex
	cluster *Cluster
	err     error
}

// Running returns the cluster of this process, which its first call starts. TestMain calls Close.
func Running(t testing.TB) *Cluster {
	t.Helper()
	testkit.Need(t, "root", "ceph")
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = start(t)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

// Close ends the cluster of this process, if there is one.
func Close() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		return nil
	}
	return shared.cluster.close()
}

// turn waits until this process may have a cluster. It returns what the cluster's folder is to begin with, and the lock that the cluster holds.
func turn(t testing.TB) (prefix string, lock *os.File, err error) {
	t.Helper()
	const most = 3
	for i := 0; ; i++ {
		prefix = fmt.Sprintf("/tmp/mct-%d-", i%most) // short: sockets live below it
		lock, err = os.OpenFile(prefix+"lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return "", nil, err
		}
		how := unix.LOCK_EX | unix.LOCK_NB
		if i == most {
			t.Log("waits until a Ceph of other tests of this machine has ended")
			how = unix.LOCK_EX
		}
		err = unix.Flock(int(lock.Fd()), how)
		if err == nil {
			return prefix + "c", lock, nil
		}
		if closed := lock.Close(); i == most || !errors.Is(err, unix.EWOULDBLOCK) || closed != nil {
			return "", nil, errors.Join(err, closed)
		}
	}
}

// limit bounds each call of Ceph's programs.
const limit = 3 * time.Minute

func start(t testing.TB) (*Cluster, error) {
	t.Helper()
	prefix, lock, err := turn(t)
	if err != nil {
		return nil, err
	}
	left, _ := filepath.Glob(prefix + "*")
	for _, dir := range left { // of a killed process: who has the lock is alone
		if err := os.RemoveAll(dir); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(prefix), filepath.Base(prefix)+"*")
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	c := &Cluster{Dir: dir, Conf: filepath.Join(dir, "ceph.conf"), Monitor: strconv.Itoa(testkit.Port(t)), lock: lock}
	if err := c.start(); err != nil {
		logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
		for _, path := range logs {
			text, _ := os.ReadFile(path)
			err = fmt.Errorf("%w\n%s: %s", err, path, text[max(0, len(text)-2000):])
		}
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// configuration is ceph.conf: the smallest caches, and no copies.
const configuration = `[global]
fsid = %[2]s
mon host = v1:127.0.0.1:%[3]s
mon initial members = a
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth_allow_insecure_global_id_reclaim = false
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
osd pool default pg autoscale mode = off
mon warn on pool no redundancy = false
mon osd min in ratio = 0
run dir = %[1]s
admin socket = %[1]s/$cluster-$name.asok
log file = %[1]s/$name.log
keyring = %[1]s/keyring
crash dir = %[1]s
ms bind msgr2 = false
public addr = 127.0.0.1
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
# An OSD that stands still for longer than 0.8 times this lets nobody read any more, also after it goes on: none other is there to renew its lease.
osd heartbeat grace = 3600
[client]
admin socket =
log file = /dev/null
[mon]
mon data = %[1]s/mon
mon data avail warn = 1
mon data avail crit = 1
[osd]
osd data = %[1]s/osd
osd objectstore = bluestore
bluestore block size = 8589934592
osd memory target = 939524096
bluestore cache autotune = false
bluestore cache size = 33554432
bluestore rocksdb options = compression=kNoCompression,max_write_buffer_number=4,min_write_buffer_number_to_merge=1,recycle_log_file_num=4,write_buffer_size=16777216,writable_file_max_buffer_size=0
osd op num shards = 2
osd max pg log entries = 500
osd min pg log entries = 100
`

func (c *Cluster) start() error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	fsid := strings.TrimSpace(string(id))
	text := fmt.Sprintf(configuration, c.Dir, fsid, c.Monitor)
	if err := errors.Join(os.Mkdir(c.path("osd"), 0o700), os.WriteFile(c.Conf, []byte(text), 0o644)); err != nil {
		return err
	}
	ring := c.path("keyring")
	users := [][]string{
		{"mon.", "mon", "allow *"},
		{"client.admin", "mon", "allow *", "osd", "allow *", "mgr", "allow *"},
		{"client." + User, "mon", "profile rbd", "osd", "profile rbd", "mgr", "profile rbd"},
		{"osd.0", "mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *"},
	}
	for i, user := range users {
		args := []string{ring, "--gen-key", "-n", user[0]}
		if i == 0 {
			args = append(args, "--create-keyring")
		}
		for j := 1; j < len(user); j += 2 {
			args = append(args, "--cap", user[j], user[j+1])
		}
		if _, err := c.Run("ceph-authtool", args...); err != nil {
			return err
		}
	}
	if c.Key, err = c.Run("ceph-authtool", ring, "-p", "-n", "client."+User); err != nil {
		return err
	}
	steps := [][]string{
		{"monmaptool", "--create", "--addv", "a", "[v1:127.0.0.1:" + c.Monitor + "]", "--fsid", fsid, c.path("monmap")},
		{"ceph-mon", "--mkfs", "-i", "a", "--monmap", c.path("monmap"), "--keyring", ring},
		{"", "ceph-mon", "-f", "-i", "a"},
		{"ceph", "osd", "new", fsid},
		{"ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", fsid},
		{"ceph", "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=h"},
		{"", "ceph-osd", "-f", "-i", "0"},
		{"ceph", "osd", "pool", "create", "rbd", "8"},
		{"rbd", "pool", "init", "rbd"},
		{"ceph", "auth", "import", "-i", ring},
	}
	for _, step := range steps {
		if step[0] == "" {
			err = c.daemon(step[1], step[2:]...)
		} else {
			_, err = c.Run(step[0], step[1:]...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

// daemon starts a daemon that ends with this process.
func (c *Cluster) daemon(name string, args ...string) error {
	out, err := os.Create(c.path(name + ".out.log"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(name, append([]string{"--conf", c.Conf}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := testkit.Start(cmd); err != nil {
		return err
	}
	c.daemons = append(c.daemons, cmd)
	return nil
}

// Run runs a program of Ceph's as the administrator of the cluster, and returns what it prints.
func (c *Cluster) Run(name string, args ...string) (string, error) { return c.Feed(nil, name, args...) }

// Feed is Run with a standard input.
func (c *Cluster) Feed(in io.Reader, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "CEPH_CONF="+c.Conf)
	cmd.Stdin = in
	var problem strings.Builder
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %q: %w: %s", name, args, err, problem.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// RBD runs rbd in a test.
func (c *Cluster) RBD(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.Run("rbd", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Image makes an image that is sizeMiB large and, if mkfs is set, has an empty ext4. It returns POOL/IMAGE.
func (c *Cluster) Image(t testing.TB, sizeMiB int, mkfs bool) string {
	t.Helper()
	spec := fmt.Sprintf("rbd/disk-%d", c.names.Add(1))
	if !mkfs {
		c.RBD(t, "create", "--size", strconv.Itoa(sizeMiB)+"M", spec)
		return spec
	}
	raw := filepath.Join(t.TempDir(), "raw")
	out, err := exec.Command("sh", "-c", `truncate -s "$2"M "$1" && mke2fs -q -F -t ext4 -O ^has_journal -E nodiscard "$1"`, "sh", raw, strconv.Itoa(sizeMiB)).CombinedOutput()
	if err != nil {
		t.Fatalf("make a filesystem: %v: %s", err, out)
	}
	c.RBD(t, "import", "--no-progress", "--image-format", "2", raw, spec)
	if err := os.Remove(raw); err != nil {
		t.Fatal(err)
	}
	return spec
}

// Disk returns the element of a domain's definition for an image. secret is the UUID of the secret that Secret has defined.
func (c *Cluster) Disk(image, dev, secret string) string {
	return fmt.Sprintf(`
    <disk type='network' device='disk'>
      <driver name='qemu' type='raw' cache='writeback' discard='unmap'/>
      <auth username='%s'><secret type='ceph' uuid='%s'/></auth>
      <source protocol='rbd' name='%s'><host name='127.0.0.1' port='%s'/></source>
      <target dev='%s' bus='virtio'/>
    </disk>`, User, secret, image, c.Monitor, dev)
}

// Secret gives the key of User to the libvirt at uri, and returns the UUID of the secret.
func (c *Cluster) Secret(t testing.TB, uri string) string {
	t.Helper()
	dir := t.TempDir()
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		t.Fatal(err)
	}
	uuid := strings.TrimSpace(string(id))
	definition, key := filepath.Join(dir, "secret.xml"), filepath.Join(dir, "key")
	xml := fmt.Sprintf("<secret ephemeral='yes' private='yes'><uuid>%[1]s</uuid><usage type='ceph'><name>client.%[2]s %[1]s</name></usage></secret>", uuid, User)
	if err := errors.Join(durable.WriteFile(definition, []byte(xml), 0o600), durable.WriteFile(key, []byte(c.Key), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"secret-define", definition}, {"secret-set-value", uuid, "--file", key}} {
		if out, err := exec.Command("virsh", append([]string{"-q", "-c", uri}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("virsh %q: %v: %s", args, err, out)
		}
	}
	return uuid
}

// Hang stops the cluster's daemons, so that nobody gets an answer, or lets them go on.
func (c *Cluster) Hang(on bool) error {
	signal := unix.SIGCONT
	if on {
		signal = unix.SIGSTOP
	}
	var all []error
	for _, cmd := range c.daemons {
		all = append(all, cmd.Process.Signal(signal))
	}
	return errors.Join(all...)
}

// close ends the cluster and removes its folder.
func (c *Cluster) close() error {
	for _, cmd := range c.daemons {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed: that is no news
	}
	return errors.Join(os.RemoveAll(c.Dir), c.lock.Close())
}
