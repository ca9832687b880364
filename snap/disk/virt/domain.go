package virt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"regexp"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"mulligan/errs"
)

// Survey has the parts of a domain's definition that the driver needs.
type Survey struct {
	Disks    []string          // target devices that are captured, in order
	Sources  map[string]string // paths of their images
	Left     []string          // target devices that are not captured
	NVRAM    string            // path; "": none
	Agent    bool              // there is a channel for the guest agent
	Awake    bool              // the agent in the guest has opened the channel (live definitions only)
	Deep     int               // length of the longest open backing chain of a disk (live definitions only)
	Warnings []string
}

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
	s := Survey{Sources: map[string]string{}}
	if dom.Devices == nil {
		dom.Devices = &libvirtxml.DomainDeviceList{}
	}
	for i := range dom.Devices.Disks {
		if err := s.disk(op, &dom.Devices.Disks[i]); err != nil {
			return Survey{}, err
		}
	}
	if len(s.Disks) == 0 {
		return Survey{}, errs.New(errs.Unsupported, op, "domain %s has no writable qcow2 disk", dom.Name).WithHint("register the app without the domain")
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
	case d.Source == nil || d.Source.File == nil:
		return refuse(other, "is not a file (it is a %s)", sourceKind(d.Source))
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
	}
	s.Deep = max(s.Deep, deep)
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

var fileAttribute = regexp.MustCompile(`(\sfile=)('[^']*'|"[^"]*")`)

// Redirect replaces the images of the disks in a definition. It edits the text and keeps every other byte, so elements that
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
				if !fileAttribute.MatchString(source) {
					return "", fmt.Errorf("disk %s of the definition has no file", dev)
				}
				sourceAt.text = fileAttribute.ReplaceAllLiteralString(source, " file='"+html.EscapeString(image)+"'")
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
