// Package forkdomain makes and removes the domain of a fork: a domain with other identities than its parent's, whose disks are overlays
// on a layer that the parent's driver lends.
//
// The fork's record of layers has that layer as its root and the overlays as its head, and is written before anything that it names, so
// that Remove finds what Make made, however far that came. An ordinary disk driver works with the record from then on.
package forkdomain

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/memoryimage"
	"mulligan/snap/disk/virt"
)

// Config names the domain of a fork.
type Config struct {
	App      string // the id of the fork's app: names folders; no slashes
	Domain   string // its name
	URI      string // of libvirt
	StateDir string // the folder of the fork's record of layers
	PoolDir  string // the folder of the overlays; "": a folder beside each disk's
	// Workspace is the app's folder. The files and sockets that the parent's domain has in its app's folder are at the same place in
	// the fork's. Others have the name of the fork's domain at the end of theirs.
	Workspace, ParentWorkspace string
	Failpoint                  failpoint.Hook // for tests: called before each step that has a lasting effect
}

// Loan is a layer of the parent's domain.
type Loan struct {
	Layer      *layertree.Layer // all backing files of its images are in Below
	Disks      []string         // target devices, in order
	Memory     *layertree.File  // the guest's memory; nil: there is none
	Definition string           // the parent's persistent definition
	Capacity   map[string]int64 // the disks' sizes in bytes
}

// head is the layer that a new fork writes to. Its root is root.
const root, head layertree.ID = "L000001", "L000002-fork"

// plan is what the fork will have.
type plan struct {
	tree       *layertree.Tree
	id         identity
	definition string
}

// Check returns an error if a domain with this definition cannot be forked.
func Check(definition string) error {
	s, err := virt.Inspect("", definition)
	if err == nil {
		_, err = forked(definition, identity{name: "fork", uuid: uuid.NewString(), images: s.Sources, path: func(p string) string { return p }})
	}
	return err
}

func (c Config) pools() layertree.Pools { return layertree.Pools{App: c.App, Dir: c.PoolDir} }

// plan makes the fork's record and definition.
func (c Config) plan(loan Loan) (p plan, err error) {
	base := *loan.Layer
	base.Parent, base.Rests, base.Borrowed, base.Frozen = "", nil, true, true
	top := &layertree.Layer{Parent: root, Files: map[string]*layertree.File{}}
	p.tree = &layertree.Tree{
		Version: layertree.Version, Domain: c.Domain, UUID: uuid.NewString(), Disks: loan.Disks, Seq: 2, Head: head,
		Layers:    map[layertree.ID]*layertree.Layer{root: &base, head: top},
		Snapshots: map[snap.SnapshotID]*layertree.Snapshot{}, Switches: map[snap.RestoreID]*layertree.Plan{},
	}
	first := ""
	for _, dev := range loan.Disks {
		dir := c.pools().Folder(p.tree, dev)
		if first == "" {
			first = dir
		}
		top.Files[dev] = &layertree.File{Path: filepath.Join(dir, string(head)+"-"+dev+".qcow2")}
	}
	p.id = identity{
		name: c.Domain, uuid: p.tree.UUID, images: top.Paths(), nvram: filepath.Join(first, nvramName),
		path: func(path string) string {
			if below, ok := strings.CutPrefix(path, c.ParentWorkspace+"/"); ok && c.ParentWorkspace != "" {
				return filepath.Join(c.Workspace, below)
			}
			path += "." + c.Domain
			if !slices.Contains(p.tree.Made, path) {
				p.tree.Made = append(p.tree.Made, path)
			}
			return path
		},
	}
	if base.NVRAM != nil {
		base.NVRAM = &layertree.File{Path: filepath.Join(first, string(root)+"-fork.nvram"), Hash: base.NVRAM.Hash}
	}
	if loan.Memory != nil {
		p.tree.Resume = &layertree.Resume{Layer: head, Memory: layertree.File{Path: filepath.Join(first, "fork.memory")}}
	}
	p.definition, err = forked(loan.Definition, p.id)
	return p, err
}

// nvramName is the name of the fork's NVRAM, beside its images.
const nvramName = "L000002-fork.nvram.live"

// Make makes the fork's disks, and defines its domain, which is off. After an error, and after a crash, Remove removes what was made.
func Make(ctx context.Context, c Config, loan Loan) (err error) {
	const op = "fork the domain"
	defer func() { err = errs.Wrap(errs.Failed, op, err) }()
	conn, err := virt.Dial(c.URI)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if m, err := conn.Lookup(c.Domain, ""); err == nil {
		m.Free()
		return errs.New(errs.Conflict, "", "there is a domain %s already", c.Domain).WithHint("rename it, or fork with another --name")
	} else if errs.KindOf(err) != errs.NotFound {
		return err
	}
	p, err := c.plan(loan)
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(c.StateDir, 0o700), c.at("record")); err != nil {
		return err
	}
	if err := p.tree.Write(c.StateDir); err != nil {
		return err
	}
	if err := c.files(ctx, conn, p, loan); err != nil {
		return err
	}
	if err := c.at("define"); err != nil {
		return err
	}
	if err := conn.Define(p.definition); err != nil {
		return err
	}
	return c.at("defined")
}

func (c Config) at(step string) error { return c.Failpoint.At("fork domain: " + step) }

// files makes the fork's images, NVRAM and memory.
func (c Config) files(ctx context.Context, conn virt.Hypervisor, p plan, loan Loan) (err error) {
	uid, gid, known := conn.Owner()
	give := func(path string) error {
		if !known || os.Geteuid() != 0 {
			return nil
		}
		return os.Chown(path, uid, gid)
	}
	for _, dev := range loan.Disks {
		path := p.tree.Layers[head].Files[dev].Path
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o711), c.at("overlay "+dev)); err != nil {
			return err
		}
		if err := imagefile.CreateOverlay(ctx, path, loan.Layer.Files[dev].Path, loan.Capacity[dev], give); err != nil {
			return err
		}
	}
	if from := loan.Layer.NVRAM; from != nil {
		if err := c.at("nvram"); err != nil {
			return err
		}
		kept, err := layertree.CopyNVRAM(from.Path, p.tree.Layers[root].NVRAM.Path)
		if err != nil {
			return err
		}
		p.tree.Layers[root].NVRAM = kept
		if err := errors.Join(imagefile.Overwrite(p.id.nvram, kept.Path), give(p.id.nvram)); err != nil {
			return err
		}
	}
	if loan.Memory != nil {
		memory := &p.tree.Resume.Memory
		if err := c.at("memory"); err != nil {
			return err
		}
		err := memoryimage.Copy(ctx, loan.Memory.Path, memory.Path, func(text string) (string, error) { return forked(text, p.id) })
		if err == nil {
			err = errors.Join(give(memory.Path), durable.Sync(filepath.Dir(memory.Path)), imagefile.SetImmutable(memory.Path, true))
		}
		if err != nil {
			return err
		}
		if memory.Stat, err = imagefile.StatOf(memory.Path); err != nil {
			return err
		}
	}
	return p.tree.Write(c.StateDir) // with what is known of the copies
}

// Remove switches a fork's domain off, undefines it and removes its files. It is repeatable, and removes what an interrupted Make made.
func Remove(c Config) (err error) {
	const op = "remove the fork's domain"
	defer func() { err = errs.Wrap(errs.Failed, op, err) }()
	t, err := layertree.Read(op, c.StateDir)
	if err != nil || t == nil {
		return err
	}
	conn, err := virt.Dial(c.URI)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := undefine(conn, c.Domain, t.UUID); err != nil {
		return err
	}
	if err := c.at("undefined"); err != nil {
		return err
	}
	for _, path := range t.Made { // their names end with that of the fork's domain, so nobody else made them
		if fi, err := os.Lstat(path); err == nil && (fi.Mode().IsRegular() || fi.Mode().Type() == os.ModeSocket) {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	for _, dev := range t.Disks {
		if err := empty(c.pools().Folder(t, dev)); err != nil {
			return err
		}
	}
	return layertree.Remove(c.StateDir)
}

// undefine switches a domain off and removes its definition, if there is such a domain.
func undefine(conn virt.Hypervisor, name, id string) error {
	m, err := conn.Lookup(name, id)
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Free()
	p, err := m.Power()
	if err == nil && p.Up() {
		err = m.Destroy()
	}
	if err == nil {
		err = m.Undefine()
	}
	return err
}

// empty removes a folder of a fork's overlays with all that the fork's driver has made in it.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if layertree.Ours(e.Name()) || e.Name() == nvramName {
			err = errors.Join(err, imagefile.Remove(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) { // others' files stay
		return err
	}
	return durable.Sync(filepath.Dir(dir))
}
