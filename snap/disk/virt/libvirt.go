//go:build cgo && libvirt_dlopen

package virt

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"mulligan/errs"
)

// The times that libvirt may take to answer, so that a libvirt that hangs does not block the daemon.
const (
	longLimit  = 15 * time.Minute // for calls that write or read a guest's memory
	closeLimit = 5 * time.Second  // to say goodbye
)

var callLimit = time.Minute // a variable for tests

// within waits for f, but no longer than limit. After that, f continues in its own goroutine.
func within[T any](limit time.Duration, what string, f func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	done := make(chan answer, 1)
	go func() {
		v, err := f()
		done <- answer{v, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.v, classify(what, a.err)
	case <-timer.C:
		var none T
		return none, errs.New(errs.Unavailable, what, "libvirt did not answer within %s", limit).WithHint("check libvirtd: systemctl status libvirtd")
	}
}

func do(limit time.Duration, what string, f func() error) error {
	_, err := within(limit, what, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// handle is something of libvirt's that is freed when nobody refers to it any more.
type handle interface {
	ref() error
	unref()
}

// on is within for a call on h. The call has a reference of its own, because the caller may free h while the call goes on.
func on[T any](h handle, limit time.Duration, what string, f func() (T, error)) (T, error) {
	if err := h.ref(); err != nil {
		var none T
		return none, classify(what, err)
	}
	return within(limit, what, func() (T, error) {
		defer h.unref()
		return f()
	})
}

func doOn(h handle, limit time.Duration, what string, f func() error) error {
	_, err := on(h, limit, what, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// classify gives an error of libvirt a kind.
func classify(what string, err error) error {
	var e libvirt.Error
	if !errors.As(err, &e) {
		return errs.Wrap(errs.Failed, what, err)
	}
	out := errs.New(errs.Failed, what, "libvirt says: %s", strings.ReplaceAll(e.Message, "\n", " "))
	if e.Domain == libvirt.FROM_RPC { // errors of the connection have any code
		out.Kind, out.Hint = errs.Unavailable, "see whether libvirtd is running and may be reached"
		return out
	}
	if strings.Contains(strings.ToLower(e.Message), unix.ENOSPC.Error()) { // such errors have any code
		out.Hint = "make room, or delete checkpoints: `mulligan prune`"
		return out
	}
	switch e.Code {
	case libvirt.ERR_NO_DOMAIN:
		out.Kind, out.Hint = errs.NotFound, "virsh list --all shows the domains there are"
	case libvirt.ERR_NO_CONNECT, libvirt.ERR_INVALID_CONN, libvirt.ERR_SYSTEM_ERROR, libvirt.ERR_RPC, libvirt.ERR_AUTH_FAILED:
		out.Kind, out.Hint = errs.Unavailable, "see whether libvirtd is running and may be reached"
	case libvirt.ERR_AGENT_UNRESPONSIVE:
		out.Kind = errs.Unavailable
	}
	return out
}

type connection struct{ c *libvirt.Connect }

// Dial connects to the libvirt of this host. It returns an error if the URI leads to another host.
func Dial(uri string) (Hypervisor, error) {
	const what = "connect to libvirt"
	if err := LocalURI(uri); err != nil {
		return nil, errs.Wrap(errs.Unsupported, what, err)
	}
	c, err := within(callLimit, what, func() (*libvirt.Connect, error) { return libvirt.NewConnect(uri) })
	if err != nil {
		out := errs.New(errs.KindOf(err), what, "%s", uri).WithHint("%s", errs.HintOf(err))
		out.Err = err
		if strings.Contains(err.Error(), "dlopen") || errs.KindOf(err) == errs.Failed {
			out.Kind, out.Hint = errs.Unsupported, "install libvirt (Debian: libvirt-daemon-system), or register the app without a domain"
		}
		return nil, out
	}
	conn := &connection{c}
	if err := isLocal(conn); err != nil {
		_ = conn.Close() // the refusal is the error that matters
		return nil, errs.Wrap(errs.Unsupported, what, err)
	}
	return conn, nil
}

// isLocal returns an error if a connection leads to another host, whatever its URI was: libvirt's configuration can define
// aliases of URIs, and a server can forward connections to another host.
func isLocal(c *connection) error {
	const what = "ask libvirt which host it runs on"
	uri, err := on(c, callLimit, what, c.c.GetURI)
	if err == nil {
		err = LocalURI(uri)
	}
	if err != nil {
		return err
	}
	name, err := on(c, callLimit, what, c.c.GetHostname)
	if err != nil {
		return err
	}
	return SameHost(uri, name)
}

func (c *connection) Close() error {
	return do(closeLimit, "leave libvirt", func() error {
		_, err := c.c.Close()
		return err
	})
}

func (c *connection) ref() error { return c.c.Ref() }
func (c *connection) unref()     { _, _ = c.c.Close() } // it drops the reference alone

func (c *connection) Lookup(name, uuid string) (Machine, error) {
	what := "find domain " + name
	d, err := on(c, callLimit, what, func() (*libvirt.Domain, error) {
		if uuid != "" {
			return c.c.LookupDomainByUUIDString(uuid)
		}
		return c.c.LookupDomainByName(name)
	})
	if err != nil {
		return nil, err
	}
	return &domain{c: c.c, d: d, what: name}, nil
}

func (c *connection) Define(xml string) error {
	return doOn(c, callLimit, "define the domain", func() error {
		d, err := c.c.DomainDefineXML(xml)
		if err != nil {
			return err
		}
		return d.Free()
	})
}

// Owner reads QEMU's user from the host's capabilities: "+UID:+GID".
func (c *connection) Owner() (uid, gid int, ok bool) {
	text, err := on(c, callLimit, "ask libvirt for its capabilities", c.c.GetCapabilities)
	if err != nil {
		return 0, 0, false
	}
	var caps libvirtxml.Caps
	if err := caps.Unmarshal(text); err != nil {
		return 0, 0, false
	}
	for _, model := range caps.Host.SecModel {
		for _, label := range model.Labels {
			if model.Name == "dac" && label.Type == "qemu" {
				_, err := fmt.Sscanf(label.Value, "+%d:+%d", &uid, &gid)
				return uid, gid, err == nil
			}
		}
	}
	return 0, 0, false
}

func (c *connection) SavedXML(path string) (string, error) {
	return on(c, callLimit, "read a memory image", func() (string, error) {
		return c.c.DomainSaveImageGetXMLDesc(path, libvirt.DOMAIN_SAVE_IMAGE_XML_SECURE)
	})
}

func (c *connection) Restore(path, xml string, paused bool) error {
	flags := libvirt.DOMAIN_SAVE_RUNNING
	if paused {
		flags = libvirt.DOMAIN_SAVE_PAUSED
	}
	return doOn(c, longLimit, "resume the domain from memory", func() error {
		return c.c.DomainRestoreFlags(path, xml, flags)
	})
}

// domain implements Machine with libvirt.
type domain struct {
	c    *libvirt.Connect
	d    *libvirt.Domain
	what string
}

func (d *domain) Free() { _ = d.d.Free() }

func (d *domain) ref() error { return d.d.Ref() }
func (d *domain) unref()     { d.Free() }

func (d *domain) Name() (string, error) {
	return on(d, callLimit, "name the domain", d.d.GetName)
}

func (d *domain) UUID() (string, error) {
	return on(d, callLimit, "name the domain", d.d.GetUUIDString)
}

func (d *domain) Power() (Power, error) {
	return on(d, callLimit, "look at domain "+d.what, func() (Power, error) {
		s, reason, err := d.d.GetState()
		switch s {
		case libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_BLOCKED, libvirt.DOMAIN_SHUTDOWN:
			return Running, err
		case libvirt.DOMAIN_PMSUSPENDED:
			return Stalled, err
		case libvirt.DOMAIN_PAUSED:
			switch libvirt.DomainPausedReason(reason) {
			case libvirt.DOMAIN_PAUSED_IOERROR, libvirt.DOMAIN_PAUSED_WATCHDOG, libvirt.DOMAIN_PAUSED_CRASHED, libvirt.DOMAIN_PAUSED_API_ERROR:
				return Stalled, err
			}
			return Paused, err
		case libvirt.DOMAIN_CRASHED:
			if active, e := d.d.IsActive(); active || e != nil {
				return Stalled, e
			}
			return Crashed, err
		}
		return Off, err
	})
}

func (d *domain) Persistent() (bool, error) {
	return on(d, callLimit, "look at domain "+d.what, d.d.IsPersistent)
}

func (d *domain) XML(live bool) (string, error) {
	flags := libvirt.DOMAIN_XML_SECURE
	if !live {
		flags |= libvirt.DOMAIN_XML_INACTIVE
	}
	return on(d, callLimit, "read the definition of "+d.what, func() (string, error) { return d.d.GetXMLDesc(flags) })
}

// SavableXML returns the definition with the processor as it was defined, and not as QEMU has completed it, because libvirt
// refuses to save a guest with the latter.
func (d *domain) SavableXML() (string, error) {
	const flags = libvirt.DOMAIN_XML_SECURE | libvirt.DOMAIN_XML_MIGRATABLE
	return on(d, callLimit, "read the definition of "+d.what, func() (string, error) { return d.d.GetXMLDesc(flags) })
}

func (d *domain) Foreign() (string, error) {
	return on(d, callLimit, "look at domain "+d.what, func() (string, error) {
		snaps, err := d.d.SnapshotListNames(0)
		if err != nil || len(snaps) > 0 {
			return "libvirt's own snapshots (" + strings.Join(snaps, ", ") + ")", err
		}
		checkpoints, err := d.d.ListAllCheckpoints(0)
		for _, c := range checkpoints {
			_ = c.Free()
		}
		if err != nil || len(checkpoints) > 0 {
			return strconv.Itoa(len(checkpoints)) + " of libvirt's checkpoints (incremental backups)", err
		}
		saved, err := d.d.HasManagedSaveImage(0)
		if err != nil || saved {
			return "a managed save image, which only fits its present disks", err
		}
		return "", nil
	})
}

func (d *domain) Snapshot(xml string, diskOnly bool) error {
	flags, limit := libvirt.DOMAIN_SNAPSHOT_CREATE_ATOMIC|libvirt.DOMAIN_SNAPSHOT_CREATE_NO_METADATA|libvirt.DOMAIN_SNAPSHOT_CREATE_REUSE_EXT, longLimit
	if diskOnly {
		flags, limit = flags|libvirt.DOMAIN_SNAPSHOT_CREATE_DISK_ONLY, callLimit
	} else {
		flags |= libvirt.DOMAIN_SNAPSHOT_CREATE_LIVE
	}
	return doOn(d, limit, "switch the disks of "+d.what, func() error {
		s, err := d.d.CreateSnapshotXML(xml, flags)
		if err != nil {
			return err
		}
		return s.Free()
	})
}

// agent calls f with a limit for the answers of the guest's agent. libvirt has limits in whole seconds and cannot report the
// former limit, so agent restores libvirt's default afterwards.
func (d *domain) agent(timeout time.Duration, what string, f func() error) error {
	seconds := max(1, int((timeout+time.Second-1)/time.Second))
	return doOn(d, timeout+10*time.Second, what, func() error {
		if err := d.d.AgentSetResponseTimeout(seconds, 0); err != nil {
			return err
		}
		err := f()
		if e := d.d.AgentSetResponseTimeout(int(libvirt.DOMAIN_AGENT_RESPONSE_TIMEOUT_BLOCK), 0); err == nil {
			err = e
		}
		return err
	})
}

func (d *domain) Freeze(timeout time.Duration) error {
	return d.agent(timeout, "freeze the guest", func() error { return d.d.FSFreeze(nil, 0) })
}

func (d *domain) Thaw(timeout time.Duration) error {
	return d.agent(timeout, "thaw the guest", func() error { return d.d.FSThaw(nil, 0) })
}

func (d *domain) Capacity(dev string) (int64, error) {
	return on(d, callLimit, "measure disk "+dev, func() (int64, error) {
		info, err := d.d.GetBlockInfo(dev, 0)
		if err != nil {
			return 0, err
		}
		return int64(info.Capacity), nil
	})
}

func (d *domain) Idle() (bool, error) {
	return on(d, callLimit, "query libvirt's job on "+d.what, func() (bool, error) {
		info, err := d.d.GetJobInfo()
		return err == nil && info.Type == libvirt.DOMAIN_JOB_NONE, err
	})
}

func (d *domain) Start(paused bool) error {
	flags := libvirt.DOMAIN_NONE
	if paused {
		flags = libvirt.DOMAIN_START_PAUSED
	}
	return doOn(d, callLimit, "start domain "+d.what, func() error { return d.d.CreateWithFlags(flags) })
}

func (d *domain) Ended() (ending, error) {
	return on(d, callLimit, "look at domain "+d.what, func() (ending, error) {
		_, reason, err := d.d.GetState()
		switch libvirt.DomainShutoffReason(reason) {
		case libvirt.DOMAIN_SHUTOFF_SHUTDOWN:
			return ShutDown, err
		case libvirt.DOMAIN_SHUTOFF_UNKNOWN:
			return EndUnknown, err
		}
		return switchedOff, err
	})
}

func (d *domain) Pause() error { return doOn(d, callLimit, "pause domain "+d.what, d.d.Suspend) }

func (d *domain) Unpause() error { return doOn(d, callLimit, "resume domain "+d.what, d.d.Resume) }

func (d *domain) Destroy() error {
	err := doOn(d, callLimit, "switch domain "+d.what+" off", d.d.Destroy)
	if err == nil {
		return nil
	}
	if p, e := d.Power(); e == nil && !p.Up() { // it went off by itself meanwhile
		return nil
	}
	return err
}

func (d *domain) Shutdown(timeout time.Duration) error {
	return doOn(d, min(timeout, callLimit), "shut domain "+d.what+" down", d.d.Shutdown) // libvirt may wait for the guest's agent
}

func (d *domain) Undefine() error {
	const flags = libvirt.DOMAIN_UNDEFINE_KEEP_NVRAM | libvirt.DOMAIN_UNDEFINE_MANAGED_SAVE |
		libvirt.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA | libvirt.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
	return doOn(d, callLimit, "undefine domain "+d.what, func() error { return d.d.UndefineFlags(flags) })
}

func (d *domain) Save(path, xml string) error {
	return doOn(d, longLimit, "save the memory of "+d.what, func() error {
		return d.d.SaveFlags(path, xml, libvirt.DOMAIN_SAVE_RUNNING)
	})
}

// DropNodes sends commands to QEMU's monitor, because libvirt has no call for them. QEMU refuses to close a node that a disk
// uses. The node of a format must be closed before the node of its file.
func (d *domain) DropNodes(images map[string]string) error {
	return doOn(d, callLimit, "close images of "+d.what+" that are not in use", func() error {
		text, err := d.d.QemuMonitorCommand(`{"execute":"query-named-block-nodes","arguments":{"flat":true}}`, libvirt.DOMAIN_QEMU_MONITOR_COMMAND_DEFAULT)
		if err != nil {
			return err
		}
		var answer struct {
			Return []struct {
				Name   string `json:"node-name"`
				File   string `json:"file"`
				Driver string `json:"drv"`
			} `json:"return"`
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			return err
		}
		for _, format := range []bool{true, false} {
			for _, node := range answer.Return {
				for _, path := range images {
					if imageOf(node.File) != path || (node.Driver == "qcow2") != format {
						continue
					}
					command := fmt.Sprintf(`{"execute":"blockdev-del","arguments":{"node-name":%q}}`, node.Name)
					if _, err := d.d.QemuMonitorCommand(command, libvirt.DOMAIN_QEMU_MONITOR_COMMAND_DEFAULT); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// imageOf returns the file of a node from QEMU's name for it. The name is a path, or "json:" with a description if the node was
// opened with other options than its header has.
func imageOf(name string) string {
	text, described := strings.CutPrefix(name, "json:")
	if !described {
		return name
	}
	var node struct {
		File struct {
			Filename string `json:"filename"`
		} `json:"file"`
	}
	if err := json.Unmarshal([]byte(text), &node); err != nil {
		return name
	}
	return node.File.Filename
}
