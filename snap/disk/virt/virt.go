// Package virt is the disk driver's access to libvirt. It has interfaces for connections and domains, their implementation with
// libvirt, and functions that read and edit a domain's definition. Without cgo, each connection is an error.
package virt

import "time"

// Hypervisor is a connection to libvirt. Tests replace it to inject faults. Errors are *errs.Error of kind NotFound,
// Unavailable or Failed.
type Hypervisor interface {
	// Lookup finds a domain by its UUID, or by its name if uuid is "".
	Lookup(name, uuid string) (Machine, error)
	// Define makes xml the persistent definition of the domain that it names.
	Define(xml string) error
	// Owner returns the user that QEMU runs as; ok is false if libvirt does not report it.
	Owner() (uid, gid int, ok bool)
	// SavedXML returns the definition in a memory image.
	SavedXML(path string) (string, error)
	// Restore starts a domain from a memory image, with xml as its definition. If paused is set, the guest does not run yet.
	Restore(path, xml string, paused bool) error
	Close() error
}

// Machine is a domain.
type Machine interface {
	Name() (string, error)
	UUID() (string, error)
	Power() (Power, error)
	Persistent() (bool, error)
	// XML returns the live definition, or the persistent one.
	XML(live bool) (string, error)
	// SavableXML returns the live definition in the form that Save needs.
	SavableXML() (string, error)
	// Foreign names objects of libvirt because of which the domain cannot be captured: snapshots, checkpoints, a managed save
	// image. "" means none.
	Foreign() (string, error)
	Snapshot(xml string, diskOnly bool) error
	Freeze(timeout time.Duration) error
	Thaw(timeout time.Duration) error
	Capacity(dev string) (int64, error)
	// Idle reports whether libvirt has finished its long jobs, like writing the guest's memory. It returns an error if the domain
	// is off.
	Idle() (bool, error)
	// Ended reports how a domain that is off was switched off.
	Ended() (ending, error)
	// Start boots the domain. If paused is set, the guest does not run yet.
	Start(paused bool) error
	// Pause stops the guest's processors, and returns when QEMU has finished and flushed what they had written.
	Pause() error
	Unpause() error
	// Shutdown asks the guest to shut down, through its agent or else by the power button, and returns when libvirt has done so. A
	// guest whose agent does not answer in time may miss it.
	Shutdown(timeout time.Duration) error
	// Destroy switches the domain off at once. It does nothing if the domain is off.
	Destroy() error
	// Undefine removes the domain's persistent definition, with what libvirt keeps of it. Its NVRAM stays.
	Undefine() error
	Save(path, xml string) error
	// DropNodes makes QEMU close images that no disk uses. QEMU opened them for a libvirtd that was killed, and the next libvirtd
	// does not know them.
	DropNodes(images map[string]string) error
	Free()
}

// Power is the power state of a domain.
type Power int

const (
	Off Power = iota
	Running
	Paused  // somebody has paused it
	Stalled // it stands still by itself: QEMU stopped it at an error of a disk or a crash of the guest, or the guest suspended itself
	Crashed // off, without a shutdown by the guest
)

// ending is the way in which a domain was switched off.
type ending int

const (
	EndUnknown  ending = iota // it has not run since libvirtd was started
	ShutDown                  // the guest shut down by itself
	switchedOff               // it was switched off from outside, or its QEMU died
)

// Up reports whether the domain has a QEMU.
func (p Power) Up() bool { return p == Running || p.Still() }

// Still reports whether the domain is up and the guest does not run.
func (p Power) Still() bool { return p == Paused || p == Stalled }
