// Package virt is the disk driver's access to libvirt: connections and domains as interfaces, libvirt
// behind them, and what a domain's definition says of its disks. Without cgo it can only say that it
// reaches no libvirt.
package virt

import "time"

// hypervisor is what the driver needs of libvirt. Tests put faults in between.
// Errors are *errs.Error of kind NotFound, Unavailable or Failed.
type Hypervisor interface {
	// Lookup finds a domain by UUID or, where that is "", by name.
	Lookup(name, uuid string) (Machine, error)
	// Define makes xml the persistent definition of the domain that it names.
	Define(xml string) error
	// Owner is whom QEMU runs as; ok is false where libvirt does not say.
	Owner() (uid, gid int, ok bool)
	// SavedXML is the definition inside a memory image.
	SavedXML(path string) (string, error)
	// Restore starts a domain from a memory image, with xml for its definition.
	// paused: its guest does not run yet.
	Restore(path, xml string, paused bool) error
	Close() error
}

// machine is one domain.
type Machine interface {
	Name() (string, error)
	UUID() (string, error)
	Power() (Power, error)
	Persistent() (bool, error)
	// XML is the live definition, or the persistent one.
	XML(live bool) (string, error)
	// SavableXML is the live definition as Save takes it.
	SavableXML() (string, error)
	// Foreign names what of libvirt's own makes the domain unfit: snapshots,
	// checkpoints, a managed save image; "" if nothing does.
	Foreign() (string, error)
	Snapshot(xml string, diskOnly bool) error
	Freeze(timeout time.Duration) error
	Thaw(timeout time.Duration) error
	Capacity(dev string) (int64, error)
	// Idle reports whether libvirt is through with what takes it long, writing
	// the guest's memory above all. Of a domain that is off it fails.
	Idle() (bool, error)
	// Ended says how a domain that is off went off.
	Ended() (ending, error)
	// Start boots the domain; paused: its guest does not run yet.
	Start(paused bool) error
	Unpause() error
	Shutdown() error
	Destroy() error
	Save(path, xml string) error
	// DropNodes has QEMU close images that no disk uses: what a libvirtd that
	// was killed had it open, and the next one does not know of.
	DropNodes(images map[string]string) error
	Free()
}

// power is whether a domain runs.
type Power int

const (
	Off Power = iota
	Running
	Paused
	Crashed // off, and not by its own will
)

// ending is how a domain went off.
type ending int

const (
	EndUnknown  ending = iota // since libvirtd was started it has not run
	ShutDown                  // the guest went down by itself
	switchedOff               // somebody switched it off, or its QEMU died
)

func (p Power) Up() bool { return p == Running || p == Paused }
