package disk

import (
	"context"
	"path/filepath"

	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// reopener makes a running QEMU open the images of a head again, and recovers from a crash during that. The caller of each
// method holds the driver's lock.
type reopener struct {
	*record
	dom *domain
}

// realign makes libvirt's live definition agree with the images that QEMU has open. libvirt has no call for that. But a guest
// that is saved to a file and resumed from it with the right definition continues as before.
func (re *reopener) realign(ctx context.Context, op string, m virt.Machine, head layertree.ID) error {
	s, _, err := re.dom.Survey(op, m, true)
	if err != nil || layertree.SamePaths(s.Sources, re.tree.Layers[head].Paths(), re.tree.Disks) {
		return err
	}
	re.cfg.Log.Warn("libvirt lost track of the domain's disks: its guest is saved and resumed", "domain", re.cfg.Domain)
	return re.reopen(op, m, head)
}

// reopen makes QEMU open the images of a head again: it saves the guest's memory to a file and resumes the guest from the file.
// The tree names the file first, so that a crash in between is recovered.
func (re *reopener) reopen(op string, m virt.Machine, head layertree.ID) error {
	if err := re.dom.definePersistent(op, m, head); err != nil {
		return err
	}
	text, err := m.SavableXML()
	if err != nil {
		return err
	}
	if text, err = virt.Redirect(text, re.tree.Layers[head].Paths()); err != nil {
		return errs.Wrap(errs.Internal, op, err)
	}
	memory := filepath.Join(re.pools().Folder(re.tree, re.tree.Disks[0]), "reopen.memory")
	if err := imagefile.Remove(memory); err != nil {
		return err
	}
	err = re.update(func(t *layertree.Tree) {
		t.Resume = &layertree.Resume{Layer: head, Memory: layertree.File{Path: memory}, Reopen: true}
	})
	if err != nil {
		return err
	}
	if err := re.cfg.Failpoint.At("reopen: save"); err != nil {
		return err
	}
	if err := m.Save(memory, text); err != nil && errs.KindOf(err) != errs.Unavailable {
		return errs.Also(err, re.forgetReopening()) // the guest keeps running as before
	} else if err != nil {
		return err
	}
	return re.resumeReopened(op, m)
}

// resumeReopened resumes a guest that reopen saved. If the saved image is incomplete, the guest still runs.
func (re *reopener) resumeReopened(op string, m virt.Machine) error {
	memory := re.tree.Resume.Memory.Path
	p, err := m.Power()
	if err != nil {
		return err
	}
	if !p.Up() {
		if err := re.cfg.Failpoint.At("reopen: resume"); err != nil {
			return err
		}
		text, err := re.dom.Conn.SavedXML(memory)
		if errs.KindOf(err) == errs.Unavailable {
			return err
		}
		if err != nil {
			// The image is incomplete: the guest was switched off in another way, and boots.
			re.cfg.Log.Warn("there is no memory to resume from", "domain", re.cfg.Domain, "err", err)
			return re.forgetReopening()
		}
		if err := re.dom.Conn.Restore(memory, text, false); err != nil {
			return err
		}
	}
	if err := re.update(func(t *layertree.Tree) { t.Suspect = false }); err != nil {
		return err
	}
	return re.forgetReopening()
}

// forgetReopening removes the memory image after a reopen.
func (re *reopener) forgetReopening() error {
	memory := re.tree.Resume.Memory.Path
	if err := re.update(func(t *layertree.Tree) { t.Resume = nil }); err != nil {
		return err
	}
	return imagefile.Remove(memory)
}
