package disk

import (
	"fmt"
	"path/filepath"
	"strings"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// adopt creates a tree whose root is the domain's present images. The images stay where they are.
func (fo *follower) adopt(op string, m virt.Machine) error {
	s, uuid, err := fo.dom.Adoptable(op, m)
	if err != nil {
		return err
	}
	if s.OnCeph() { // the daemon chooses the driver before
		return errs.New(errs.Conflict, op, "the disks of domain %s are on Ceph now", fo.cfg.Domain).WithHint("restart mulligand")
	}
	root := &layertree.Layer{Files: map[string]*layertree.File{}, Below: map[string][]*layertree.File{}}
	for _, dev := range s.Disks {
		if err := fo.dom.Trusted(op, "disk images", filepath.Dir(s.Sources[dev])); err != nil {
			return err
		}
		below, err := layertree.Foundation(op, dev, s.Sources[dev])
		if err != nil {
			return err
		}
		root.Files[dev] = &layertree.File{Path: s.Sources[dev]}
		if len(below) > 0 {
			root.Below[dev] = below
		}
	}
	t := &layertree.Tree{
		Version: layertree.Version, Domain: fo.cfg.Domain, UUID: uuid, Disks: s.Disks, Seq: 1, Head: "L000001",
		Layers: map[layertree.ID]*layertree.Layer{"L000001": root}, Snapshots: map[snap.SnapshotID]*layertree.Snapshot{}, Switches: map[snap.RestoreID]*layertree.Plan{},
	}
	fo.claim.Store(layertree.ClaimOf(t))
	fo.tree = t // agree uses it; the first change saves it
	return nil
}

// agree checks that the domain's persistent definition, and while the domain runs also its live definition, have the images of
// the tree's head.
func (fo *follower) agree(op string, m virt.Machine) error {
	kept, live, err := fo.dom.Both(op, m)
	if err != nil {
		return err
	}
	if err := fo.followDisks(op, kept, live); err != nil {
		return err
	}
	head := fo.tree.Layers[fo.tree.Head]
	if err := fo.agrees(op, "persistent", kept, head); err != nil {
		return err
	}
	if err := fo.agrees(op, "live", live, head); err != nil {
		return err
	}
	return fo.followOpen(m, live)
}

func (fo *follower) agrees(op, which string, s virt.Survey, head *layertree.Layer) error {
	for _, dev := range fo.tree.Disks {
		now, should := s.Sources[dev], head.Files[dev].Path
		switch {
		case now == should:
			continue
		case now == "":
			return errs.New(errs.Conflict, op, "domain %s was redefined: its %s definition has disks %s, and %s are protected",
				fo.cfg.Domain, which, strings.Join(s.Disks, " "), strings.Join(fo.tree.Disks, " ")).
				WithHint("a rollback of it is under way: attach the disk again, and detach it after the rollback")
		}
		hint := "nothing is lost: virsh edit it back; or app remove and app add, which starts a new history"
		if img, f, err := imagefile.OpenImage(now); err == nil && img.Backing == should {
			f.Close() // only read
			hint = fmt.Sprintf("an overlay was put on the image: while the domain runs, merge it with virsh blockcommit %s %s --active --shallow --pivot", fo.cfg.Domain, dev)
		}
		return errs.New(errs.Conflict, op, "domain %s was redefined: disk %s is %s in its %s definition, and should be %s",
			fo.cfg.Domain, dev, now, which, should).WithHint("%s", hint)
	}
	return nil
}
