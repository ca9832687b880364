package forkdomain

import (
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"libvirt.org/go/libvirtxml"

	"mulligan/errs"
)

// identity is what the definition of a fork has instead of its parent's.
type identity struct {
	name, uuid string
	images     map[string]string          // paths, by target device
	nvram      string                     // path
	path       func(parent string) string // the fork's path of a file or socket on the host that the parent's domain makes
}

const elsewhere = "change that in the domain's definition, or fork the app without its domain"

func refuse(format string, args ...any) error {
	return errs.New(errs.Unsupported, "", "a fork cannot have the domain's "+format, args...).WithHint(elsewhere)
}

// forked returns the definition of a fork from its parent's. The fork has the same hardware, other identities, and nothing on the host
// that both could write to: its network cards are connected to nothing.
func forked(text string, id identity) (string, error) {
	var dom libvirtxml.Domain
	if err := dom.Unmarshal(text); err != nil {
		return "", errs.Wrap(errs.Failed, "read a definition", err)
	}
	if err := keeps(text, &dom); err != nil {
		return "", err
	}
	dom.ID, dom.Name, dom.UUID = nil, id.name, id.uuid
	if dom.GenID != nil {
		dom.GenID.Value = uuid.NewString()
	}
	dom.SecLabel = slices.DeleteFunc(dom.SecLabel, func(l libvirtxml.DomainSecLabel) bool { return l.Type == "dynamic" })
	if dom.OS != nil && dom.OS.NVRam != nil {
		dom.OS.NVRam.NVRam = id.nvram
	}
	if dom.SysInfo != nil { // libvirt wants the UUID in the tables of the firmware to be the domain's
		for _, info := range dom.SysInfo {
			if info.SMBIOS != nil && info.SMBIOS.System != nil {
				for i := range info.SMBIOS.System.Entry {
					if e := &info.SMBIOS.System.Entry[i]; e.Name == "uuid" {
						e.Value = id.uuid
					}
				}
			}
		}
	}
	if c := dom.QEMUCommandline; c != nil && len(c.Args)+len(c.Envs) > 0 {
		return "", refuse("own arguments for QEMU (<qemu:commandline>): they may name what only one domain can have")
	}
	if d := dom.Devices; d != nil {
		for _, change := range []func(*libvirtxml.DomainDeviceList, identity) error{unsharable, disks, networkCards, characters, screens} {
			if err := change(d, id); err != nil {
				return "", err
			}
		}
	}
	out, err := dom.Marshal()
	return out, errs.Wrap(errs.Failed, "write a definition", err)
}

// unsharable returns an error for devices that belong to one domain alone.
func unsharable(d *libvirtxml.DomainDeviceList, _ identity) error {
	switch {
	case len(d.Hostdevs) > 0:
		return refuse("devices of the host (<hostdev>): two domains cannot have them")
	case len(d.TPMs) > 0:
		return refuse("<tpm>")
	case len(d.Shmems) > 0:
		return refuse("shared memory (<shmem>)")
	case len(d.Leases) > 0:
		return refuse("<lease>")
	case len(d.Smartcards) > 0:
		return refuse("<smartcard>")
	case d.PStore != nil:
		return refuse("<pstore>")
	}
	for _, fs := range d.Filesystems {
		if fs.ReadOnly == nil {
			return refuse("shared folder of the host (<filesystem>): both guests would write to it. Mark it <readonly/>")
		}
	}
	for _, m := range d.Memorydevs {
		if m.Source != nil && m.Source.Path != "" {
			return refuse("memory device with the file %s", m.Source.Path)
		}
	}
	for _, r := range d.RNGs {
		if r.Backend != nil && r.Backend.EGD != nil {
			return refuse("source of random numbers by a socket (<backend model='egd'>)")
		}
	}
	for _, a := range d.Audios {
		if a.File != nil {
			return refuse("sound that is written to a file")
		}
	}
	if d.VSock != nil && d.VSock.CID != nil {
		d.VSock.CID.Auto, d.VSock.CID.Address = "yes", ""
	}
	return nil
}

// disks gives the fork its own images. Disks that the guest cannot write to are those of the parent.
func disks(d *libvirtxml.DomainDeviceList, id identity) error {
	for i := range d.Disks {
		disk := &d.Disks[i]
		dev := ""
		if disk.Target != nil {
			dev = disk.Target.Dev
		}
		if image, ok := id.images[dev]; ok && disk.Source != nil && disk.Source.File != nil {
			disk.Source.File.File, disk.Source.Index, disk.BackingStore = image, 0, nil
			continue
		}
		if disk.Device != "cdrom" && disk.Device != "floppy" && disk.ReadOnly == nil {
			return refuse("disk %s, which is not captured: both guests would write to it. Detach it, or mark it <readonly/>", dev)
		}
	}
	return nil
}

// networkCards gives the fork's cards addresses of their own and connects them to nothing. Cards of type user are isolated already. The
// backend of the other types becomes a tap device like theirs, because a guest's memory only fits to a backend with the same features.
func networkCards(d *libvirtxml.DomainDeviceList, id identity) error {
	for i := range d.Interfaces {
		c := &d.Interfaces[i]
		c.MAC = &libvirtxml.DomainInterfaceMAC{Address: cardAddress(id.uuid, i)}
		s := c.Source
		switch {
		case s == nil:
			return refuse("network card without a source")
		case s.User != nil:
			if len(c.PortForward) > 0 || c.Backend != nil && c.Backend.LogFile != "" {
				return refuse("network card with forwarded ports")
			}
			continue
		case s.Bridge != nil, s.Network != nil, s.Ethernet != nil:
		default:
			return refuse("network card that is neither of type network, bridge, ethernet nor user")
		}
		c.Source = &libvirtxml.DomainInterfaceSource{Ethernet: &libvirtxml.DomainInterfaceSourceEthernet{}}
		c.Target, c.VLan, c.VirtualPort, c.FilterRef, c.Bandwidth, c.PortOptions = nil, nil, nil, nil, nil, nil
		c.Script, c.DownScript, c.IP, c.Route, c.Guest, c.TrustGuestRXFilters = nil, nil, nil, nil, nil, ""
	}
	return nil
}

// cardAddress returns the address of a domain's i-th network card. The first three bytes are QEMU's.
func cardAddress(uuid string, i int) string {
	b := sha256.Sum256(fmt.Appendf(nil, "%s %d", uuid, i))
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", b[0], b[1], b[2])
}

// characters gives the fork files and sockets of its own for its serial ports, consoles and channels.
func characters(d *libvirtxml.DomainDeviceList, id identity) error {
	var all []*libvirtxml.DomainChardevSource
	add := func(s *libvirtxml.DomainChardevSource, log *libvirtxml.DomainChardevLog) {
		if log != nil {
			log.File = id.path(log.File)
		}
		all = append(all, s)
	}
	for i := range d.Serials {
		add(d.Serials[i].Source, d.Serials[i].Log)
	}
	for i := range d.Parallels {
		add(d.Parallels[i].Source, d.Parallels[i].Log)
	}
	for i := range d.Consoles {
		add(d.Consoles[i].Source, d.Consoles[i].Log)
		d.Consoles[i].TTY = ""
	}
	for i := range d.Channels {
		add(d.Channels[i].Source, d.Channels[i].Log)
	}
	for i := range d.RedirDevs {
		add(d.RedirDevs[i].Source, nil)
	}
	for _, s := range all {
		switch {
		case s == nil, s.Null != nil, s.VC != nil, s.SpiceVMC != nil, s.SpicePort != nil, s.QEMUVDAgent != nil:
		case s.Pty != nil:
			s.Pty.Path = ""
		case s.File != nil && s.File.Path == os.DevNull: // everybody may write there
		case s.File != nil:
			s.File.Path = id.path(s.File.Path)
		case s.UNIX != nil && s.UNIX.Mode == "connect":
			return refuse("device that connects to the socket %s: both guests would talk to the same program", s.UNIX.Path)
		case s.UNIX != nil && s.UNIX.Path != "":
			s.UNIX.Path = id.path(s.UNIX.Path)
		case s.UNIX != nil: // libvirt chooses the path
		default:
			return refuse("serial port, console or channel that is neither a terminal, a file nor a Unix socket")
		}
	}
	return nil
}

// screens lets libvirt choose the ports and sockets of the fork's screens.
func screens(d *libvirtxml.DomainDeviceList, _ identity) error {
	for i := range d.Graphics {
		var listeners []libvirtxml.DomainGraphicListener
		switch g := &d.Graphics[i]; {
		case g.VNC != nil:
			g.VNC.Port, g.VNC.AutoPort, g.VNC.WebSocket, listeners = -1, "yes", 0, g.VNC.Listeners
			g.VNC.Socket = ""
		case g.Spice != nil:
			g.Spice.Port, g.Spice.TLSPort, g.Spice.AutoPort, listeners = 0, 0, "yes", g.Spice.Listeners
		case g.EGLHeadless != nil:
		default:
			return refuse("screen that is neither VNC, SPICE nor headless")
		}
		for i := range listeners {
			if listeners[i].Socket != nil {
				listeners[i].Socket.Socket = ""
			}
		}
	}
	return nil
}

// keeps returns an error if dom, which was read from text, lacks something that text has: then the fork's domain would lack it too.
func keeps(text string, dom *libvirtxml.Domain) error {
	again, err := dom.Marshal()
	if err != nil {
		return errs.Wrap(errs.Failed, "write a definition", err)
	}
	was, err := parts(text)
	if err != nil {
		return errs.Wrap(errs.Failed, "read a definition", err)
	}
	is, err := parts(again)
	if err != nil {
		return errs.Wrap(errs.Failed, "read a definition", err)
	}
	count := map[string]int{}
	for _, p := range is {
		count[p]++
	}
	for _, p := range was {
		if count[p]--; count[p] < 0 {
			return refuse("%.100s, which mulligan does not know", p)
		}
	}
	return nil
}

// parts lists the elements of a definition with their attributes and texts, each with its path. Metadata and labels of the host's
// security system are not parts of the hardware.
func parts(text string) (list []string, err error) {
	var path []string
	dec := xml.NewDecoder(strings.NewReader(text))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		switch t := token.(type) {
		case xml.StartElement:
			if name := t.Name.Local; name == "metadata" || name == "seclabel" || name == "privateData" {
				if err := dec.Skip(); err != nil {
					return nil, err
				}
				continue
			}
			path = append(path, t.Name.Local)
			at := strings.Join(path[1:], "/")
			list = append(list, "<"+at+">")
			for _, a := range t.Attr {
				if a.Name.Space != "xmlns" && a.Name.Local != "xmlns" {
					list = append(list, "<"+at+" "+a.Name.Local+"='"+plain(a.Value)+"'>")
				}
			}
		case xml.EndElement:
			path = path[:len(path)-1]
		case xml.CharData:
			if s := strings.TrimSpace(string(t)); s != "" {
				list = append(list, "<"+strings.Join(path[1:], "/")+">"+s)
			}
		}
	}
}

// plain writes numbers in one way: libvirt has some in hexadecimal.
func plain(value string) string {
	if n, err := strconv.ParseUint(value, 0, 64); err == nil {
		return strconv.FormatUint(n, 10)
	}
	return value
}
