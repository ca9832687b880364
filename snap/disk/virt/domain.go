package virt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"mulligan/errs"
)

// Survey has the parts of a domain's definition that the driver needs.
type Survey struct {
	Disks    []string          // target devices that are captured, in order
	Sources  map[string]string // paths of their images, or names of their RBD images
	Volumes  map[string]Volume // how the guest reaches the disks that are RBD images; the others are qcow2 files
	Left     []string          // target devices that are not captured
	NVRAM    string            // path; "": none
	Agent    bool              // there is a channel for the guest agent
	Awake    bool              // the agent in the guest has opened the channel (live definitions only)
	Deep     int               // length of the longest open backing chain of a disk (live definitions only)
	Below    []string          // paths of the images of all open backing chains (live definitions only)
	Warnings []string
}

// Volume is how a definition reaches an RBD image.
type Volume struct {
	Image    string   // POOL/IMAGE, or POOL/NAMESPACE/IMAGE
	Monitors []string // HOST or HOST:PORT; none: those of Ceph's configuration
	Config   string   // path of Ceph's configuration; "": the usual one
	User     string   // of cephx, without "client."; "": none is named
}

// OnCeph reports whether the disks are RBD images. A domain never has disks of both kinds.
func (s Survey) OnCeph() bool { return len(s.Volumes) > 0 }

// Others lists the definition's disks that are not captured.
func (s Survey) Others(captured []string) []string {
	return slices.DeleteFunc(slices.Concat(s.Left, s.Disks), func(dev string) bool { return slices.Contains(captured, dev) })
}

// agentChannel is the name of the channel that qemu-ga uses.
const agentChannel = "org.qemu.guest_agent.0"

// Inspect reads a definition. It returns an error that names a device that cannot be captured.
func Inspect(op, text string) (Survey, error) {
	var dom libvirtxml.Domain
	if err := dom.Unmarshal(text); err != nil {
		return Survey{}, errs.Wrap(errs.Failed, op, err)
	}
	s := Survey{Sources: map[string]string{}, Volumes: map[string]Volume{}}
	if dom.Devices == nil {
		dom.Devices = &libvirtxml.DomainDeviceList{}
	}
	for i := range dom.Devices.Disks {
		if err := s.disk(op, &dom.Devices.Disks[i]); err != nil {
			return Survey{}, err
		}
	}
	if len(s.Disks) == 0 {
		return Survey{}, errs.New(errs.Unsupported, op, "domain %s has no writable disk that is a qcow2 file or an RBD image", dom.Name).WithHint("register the app without the domain")
	}
	if s.OnCeph() && len(s.Volumes) < len(s.Disks) {
		onCeph := slices.Sorted(maps.Keys(s.Volumes))
		return Survey{}, errs.New(errs.Unsupported, op, "disk %s of domain %s is on Ceph and others are files: mulligan cannot capture them at one instant", strings.Join(onCeph, " "), dom.Name).
			WithHint("move them to one kind, or mark those that need no checkpoints snapshot='no'")
	}
	slices.Sort(s.Disks)
	if dom.OS != nil && dom.OS.NVRam != nil {
		s.NVRAM = dom.OS.NVRam.NVRam
		if s.NVRAM == "" && dom.OS.NVRam.Source != nil {
			return Survey{}, errs.New(errs.Unsupported, op, "the NVRAM of %s is not a plain file", dom.Name).WithHint("give it a file: <nvram>/path</nvram>")
		}
	}
	for _, t := range dom.Devices.TPMs {
		if t.Backend != nil && t.Backend.Emulator != nil {
			return Survey{}, errs.New(errs.Unsupported, op, "the emulated TPM of %s keeps state that mulligan cannot bring back", dom.Name).
				WithHint("remove the <tpm> device, or register the app without the domain")
		}
	}
	for _, c := range dom.Devices.Channels {
		if c.Target != nil && c.Target.VirtIO != nil && c.Target.VirtIO.Name == agentChannel {
			s.Agent, s.Awake = true, c.Target.VirtIO.State == "connected"
		}
	}
	for _, fs := range dom.Devices.Filesystems {
		if fs.Target != nil && fs.ReadOnly == nil {
			s.Warnings = append(s.Warnings, fmt.Sprintf("the host folder shared with the guest as %s is not captured with its disks.", fs.Target.Dir))
		}
	}
	return s, nil
}

// disk adds one disk to the survey.
func (s *Survey) disk(op string, d *libvirtxml.DomainDisk) error {
	dev := ""
	if d.Target != nil {
		dev = d.Target.Dev
	}
	refuse := func(hint, format string, args ...any) error {
		return errs.New(errs.Unsupported, op, "disk "+dev+" "+format, args...).WithHint("%s", hint)
	}
	const other = "register the app without the domain, or detach this disk"
	kind := d.Device
	if kind == "" {
		kind = "disk"
	}
	format := "raw"
	if d.Driver != nil && d.Driver.Type != "" {
		format = d.Driver.Type
	}
	switch {
	case kind == "cdrom" || kind == "floppy" || d.ReadOnly != nil:
		s.Left = append(s.Left, dev) // the guest cannot write to it
		return nil
	case d.Snapshot == "no":
		s.Left = append(s.Left, dev)
		s.Warnings = append(s.Warnings, fmt.Sprintf("disk %s is marked snapshot='no': it is neither captured nor restored.", dev))
		return nil
	case kind != "disk":
		return refuse(other, "is passed through as a %s", kind)
	case d.Transient != nil:
		return refuse("remove <transient/> from it", "is transient")
	case d.Shareable != nil:
		return refuse(other, "is shared with other domains")
	case d.Source != nil && d.Source.Network != nil && d.Source.Network.Protocol == "rbd" && dev != "":
		return s.volume(dev, format, d, refuse)
	case d.Source == nil || d.Source.File == nil:
		return refuse(other, "is neither a file nor an RBD image (it is a %s)", sourceKind(d.Source))
	case format != "qcow2":
		return refuse("convert it: qemu-img convert -O qcow2, then virsh edit; or mark it <readonly/>", "has format %s, and not qcow2", format)
	case d.Encryption != nil || d.Source.Encryption != nil:
		return refuse(other, "is encrypted")
	case d.Mirror != nil:
		return errs.New(errs.Busy, op, "disk %s is being copied by a block job", dev).WithHint("wait for it, or virsh blockjob --abort")
	case d.Source.File.File == "" || dev == "":
		return refuse(other, "has no file")
	}
	s.Disks = append(s.Disks, dev)
	s.Sources[dev] = d.Source.File.File
	deep := 0
	for b := d.BackingStore; b != nil && b.Source != nil; b = b.BackingStore {
		deep++
		if b.Source.File != nil {
			s.Below = append(s.Below, b.Source.File.File)
		}
	}
	s.Deep = max(s.Deep, deep)
	return nil
}

// imageName matches the name of an RBD image in a definition. Its parts become arguments of the program rbd, so none may begin with a dash.
var imageName = regexp.MustCompile(`^[^-/@\s][^/@\s]*(/[^-/@\s][^/@\s]*){1,2}$`)

// volume adds one disk that is an RBD image to the survey.
func (s *Survey) volume(dev, format string, d *libvirtxml.DomainDisk, refuse func(hint, format string, args ...any) error) error {
	const other = "register the app without the domain, or detach this disk"
	n := d.Source.Network
	switch {
	case format != "raw":
		return refuse("convert it: qemu-img convert -O raw", "is an RBD image with the format %s, and not raw", format)
	case d.Encryption != nil || d.Source.Encryption != nil:
		return refuse(other, "is encrypted")
	case n.Snapshot != nil:
		return refuse(other, "is a snapshot of an RBD image")
	case d.Mirror != nil:
		return errs.New(errs.Busy, "", "disk %s is being copied by a block job", dev).WithHint("wait for it, or virsh blockjob --abort")
	case !imageName.MatchString(n.Name):
		return refuse("name it POOL/IMAGE", "has the RBD image %q", n.Name)
	}
	v := Volume{Image: n.Name}
	for _, h := range n.Hosts {
		at := h.Name
		if strings.Contains(at, ":") {
			at = "[" + at + "]"
		}
		if h.Port != "" {
			at += ":" + h.Port
		}
		if at != "" {
			v.Monitors = append(v.Monitors, at)
		}
	}
	if n.Config != nil {
		v.Config = n.Config.File
	}
	for _, auth := range []*libvirtxml.DomainDiskAuth{d.Auth, n.Auth} {
		if auth != nil {
			v.User = auth.Username
		}
	}
	s.Disks = append(s.Disks, dev)
	s.Sources[dev], s.Volumes[dev] = v.Image, v
	return nil
}

func sourceKind(src *libvirtxml.DomainDiskSource) string {
	switch {
	case src == nil:
		return "drive without a medium"
	case src.Block != nil:
		return "block device"
	case src.Network != nil:
		return "network disk, " + src.Network.Protocol
	case src.Volume != nil:
		return "volume of a pool: name its file instead"
	}
	return "disk of another kind"
}

var (
	fileAttribute = regexp.MustCompile(`(\sfile=)('[^']*'|"[^"]*")`)
	nameAttribute = regexp.MustCompile(`(\sname=)('[^']*'|"[^"]*")`)
	rbdAttribute  = regexp.MustCompile(`\sprotocol=['"]rbd['"]`)
)

// Redirect replaces the images of the disks in a definition: their files, or their RBD images. It edits the text and keeps every other byte, so elements that
// this program does not know stay.
func Redirect(text string, to map[string]string) (string, error) {
	type span struct {
		from, to int64
		text     string
	}
	var edits, inDisk []span
	var path []string
	var dev, source string
	var sourceAt, storeAt span
	done := map[string]bool{}
	dec := xml.NewDecoder(strings.NewReader(text))
	for {
		at := dec.InputOffset()
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("read a definition: %w", err)
		}
		switch tok := token.(type) {
		case xml.StartElement:
			path = append(path, tok.Name.Local)
			switch strings.Join(path, "/") {
			case "domain/devices/disk":
				dev, source, inDisk = "", "", nil
			case "domain/devices/disk/source":
				sourceAt = span{from: at, to: dec.InputOffset()}
				source = text[sourceAt.from:sourceAt.to]
			case "domain/devices/disk/backingStore":
				storeAt = span{from: at}
			case "domain/devices/disk/target":
				for _, a := range tok.Attr {
					if a.Name.Local == "dev" {
						dev = a.Value
					}
				}
			}
		case xml.EndElement:
			where := strings.Join(path, "/")
			path = path[:len(path)-1]
			switch where {
			case "domain/devices/disk/backingStore":
				storeAt.to = dec.InputOffset()
				inDisk = append(inDisk, storeAt)
			case "domain/devices/disk":
				image, ours := to[dev]
				if !ours {
					continue
				}
				attribute, name := fileAttribute, "file"
				if rbdAttribute.MatchString(source) {
					attribute, name = nameAttribute, "name"
				}
				if !attribute.MatchString(source) {
					return "", fmt.Errorf("disk %s of the definition has no image", dev)
				}
				sourceAt.text = attribute.ReplaceAllLiteralString(source, " "+name+"='"+html.EscapeString(image)+"'")
				edits = append(append(edits, sourceAt), inDisk...)
				done[dev] = true
			}
		}
	}
	for dev := range to {
		if !done[dev] {
			return "", fmt.Errorf("the definition has no disk %s", dev)
		}
	}
	slices.SortFunc(edits, func(a, b span) int { return int(b.from - a.from) })
	for _, e := range edits {
		text = text[:e.from] + e.text + text[e.to:]
	}
	return text, nil
}

// SnapshotXML returns a request to switch all disks to existing overlays, and to do nothing else.
func SnapshotXML(disks, left []string, to map[string]string, memory string) string {
	var b strings.Builder
	b.WriteString("<domainsnapshot>")
	if memory == "" {
		b.WriteString("<memory snapshot='no'/>")
	} else {
		fmt.Fprintf(&b, "<memory snapshot='external' file='%s'/>", html.EscapeString(memory))
	}
	b.WriteString("<disks>")
	for _, dev := range disks {
		fmt.Fprintf(&b, "<disk name='%s' snapshot='external' type='file'><driver type='qcow2'/><source file='%s'/></disk>", html.EscapeString(dev), html.EscapeString(to[dev]))
	}
	for _, dev := range left {
		fmt.Fprintf(&b, "<disk name='%s' snapshot='no'/>", html.EscapeString(dev))
	}
	b.WriteString("</disks></domainsnapshot>")
	return b.String()
}
