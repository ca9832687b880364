package agents

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/aymanbagabas/go-udiff"

	"mulligan/errs"
)

var wholeConflict = errs.New(errs.Conflict, opSettings, "the file already has this entry, and mulligan did not write it").WithHint("remove or rename that entry")

// Backups keeps the original contents of settings files in a folder of the user. Uninstall restores them byte for byte, unless
// they were changed since.
type Backups struct{ Dir string }

// backup is the backup of one file for one agent.
type backup struct {
	Path    string `json:"path"`
	Existed bool   `json:"existed"`
	Before  []byte `json:"before"`
	After   string `json:"after"` // SHA-256 of the content that mulligan wrote
	// Folders are the folders that were made for the file, below the root, outermost first.
	Folders []string `json:"folders,omitempty"`
}

// hasPart reports whether an MCP entry of mulligan's was in the file before the installation: a user wrote it.
func (b backup) hasPart(c Change) bool {
	text, err := c.Edit.Remove(string(b.Before))
	return err == nil && text != string(b.Before)
}

// Edited is the planned change of one file.
type Edited struct {
	Path   string `json:"path"`
	Action string `json:"action"` // created, changed, removed, unchanged
	Diff   string `json:"diff,omitempty"`
	Backup string `json:"backup,omitempty"` // the path of the backup

	change Change
	file   settingsFile
	text   string // the new text
	gone   bool   // the file is removed
	kept   backup
	known  bool // a backup existed before
	// again plans the change anew.
	again func() (Edited, error)
}

// Install plans the changes of files for the installation of an agent's settings.
func (a *Agent) Install(p Place, b Backups) ([]Edited, error) {
	return a.plan(p, func(c Change, f settingsFile) (Edited, error) {
		e := Edited{change: c, file: f, Backup: b.path(a.Name, f.path)}
		old, known := b.load(e.Backup)
		e.known = known
		var err error
		if e.text, err = c.Edit.Insert(f.text); err != nil {
			return e, err
		}
		if known && f.exists && old.After == sum(f.text) {
			e.kept = old
			return e, nil
		}
		without := c.Edit.Before
		if known && !old.hasPart(c) {
			without = c.Edit.Remove
		}
		base, err := without(f.text)
		if err != nil {
			return e, err
		}
		e.kept = backup{Path: f.path, Existed: f.exists && !(base == "" && f.text != ""), Before: []byte(base)}
		if known {
			e.kept.Folders = old.Folders
		}
		return e, nil
	})
}

// Uninstall plans the changes of files for the removal of an agent's settings.
func (a *Agent) Uninstall(p Place, b Backups) ([]Edited, error) {
	return a.plan(p, func(c Change, f settingsFile) (Edited, error) {
		e := Edited{change: c, file: f, Backup: b.path(a.Name, f.path)}
		old, known := b.load(e.Backup)
		e.kept = old
		if known && f.exists && old.After == sum(f.text) {
			e.text, e.gone = string(old.Before), !old.Existed
			return e, nil
		}
		without := c.Edit.Remove
		if known && old.hasPart(c) {
			without = c.Edit.Before
		}
		text, err := without(f.text)
		e.text = text
		e.gone = f.text != "" && (text == "" || known && !old.Existed && compact(text) == "{}")
		return e, err
	})
}

// plan reads each file and returns its planned change. It writes nothing.
func (a *Agent) plan(p Place, edit func(Change, settingsFile) (Edited, error)) ([]Edited, error) {
	var list []Edited
	for _, c := range a.settings(p) {
		c.Edit = plain{c.Edit}
		e, err := planOne(c, edit)
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

func planOne(c Change, edit func(Change, settingsFile) (Edited, error)) (Edited, error) {
	f, err := readSettings(c)
	if err != nil {
		return Edited{}, err
	}
	e, err := edit(c, f)
	if err != nil {
		return Edited{}, about(f.path, err)
	}
	e.again = func() (Edited, error) { return planOne(c, edit) }
	e.Path = f.path
	e.Action = "changed"
	switch {
	case e.gone && f.exists:
		e.Action, e.text = "removed", ""
	case e.gone, e.text == f.text:
		e.Action = "unchanged"
	case !f.exists:
		e.Action = "created"
	}
	if e.Action != "unchanged" {
		e.Diff = udiff.Unified(f.path, f.path, f.text, e.text)
	}
	return e, nil
}

// about adds the path of the file to an error. It returns nil for nil.
func about(path string, err error) error {
	if err == nil {
		return nil
	}
	var e *errs.Error
	if !errors.As(err, &e) {
		return errs.Wrap(errs.Failed, opSettings, err)
	}
	return &errs.Error{Kind: e.Kind, Op: e.Op, Message: path + ": " + e.Message, Hint: e.Hint, Err: e.Err}
}

// carryOut carries out the plan by write, and plans it anew if the file was changed since: else what another program wrote would be lost.
func (e *Edited) carryOut(write func() error) error {
	for range 5 {
		if e.Action == "unchanged" {
			return nil
		}
		if err := write(); !errors.Is(err, errChanged) {
			return err
		}
		next, err := e.again()
		if err != nil {
			return err
		}
		*e = next
	}
	return about(e.Path, errs.New(errs.Conflict, opSettings, "another program changes the file again and again").WithHint("end that program, and try again"))
}

// Apply carries out plans of Install. It backs up each file before it changes the file, and also a file that has all that is mulligan's already. If
// a change fails, Apply undoes those before it.
func (b Backups) Apply(list []Edited) error {
	for i := range list {
		e := &list[i]
		err := e.carryOut(func() error {
			err := b.apply(e)
			if errors.Is(err, errChanged) {
				if failed := b.putBack(*e); failed != nil {
					return failed
				}
			}
			return err
		})
		if err == nil && e.Action == "unchanged" && !e.known { // Uninstall is to know what a user wrote in it
			e.kept.After = sum(e.text)
			err = b.save(e.Backup, e.kept)
		}
		if err != nil {
			for _, done := range slices.Backward(list[:i+1]) {
				err = errs.Also(err, b.putBack(done))
			}
			return err
		}
	}
	return nil
}

func (b Backups) apply(e *Edited) error {
	e.kept.After = sum(e.text)
	made, err := missing(e.change, e.file)
	if err != nil {
		return err
	}
	if len(made) > 0 {
		e.kept.Folders = made
	}
	if err := b.save(e.Backup, e.kept); err != nil {
		return err
	}
	return about(e.Path, writeSettings(e.change, e.file, e.text))
}

// putBack undoes what Apply has done to the file.
func (b Backups) putBack(e Edited) error {
	now, err := readSettings(e.change)
	switch {
	case err != nil || now.text != e.text: // Apply had not changed it
	case e.Action == "created":
		err = removeSettings(e.change, now, e.kept.Folders)
	case e.Action == "changed":
		err = writeSettings(e.change, now, e.file.text)
	}
	if err != nil {
		return about(e.Path, err)
	}
	if e.known {
		e.kept.After = sum(e.file.text)
		return b.save(e.Backup, e.kept)
	}
	if err := os.Remove(e.Backup); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.Wrap(errs.Failed, opSettings, err)
	}
	return nil
}

// Undo carries out plans of Uninstall, the last file first: a folder may have been made for the first file, and can go only
// with it.
func (b Backups) Undo(list []Edited) error {
	for i := range slices.Backward(list) {
		e := &list[i]
		err := e.carryOut(func() error {
			if e.Action == "removed" {
				return about(e.Path, removeSettings(e.change, e.file, e.kept.Folders))
			}
			return about(e.Path, writeSettings(e.change, e.file, e.text))
		})
		if err != nil {
			return err
		}
		if err := os.Remove(e.Backup); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errs.Wrap(errs.Failed, opSettings, err)
		}
	}
	return nil
}

func (b Backups) path(agent, file string) string {
	return filepath.Join(b.Dir, agent+"-"+digest(file)+".json")
}

func (b Backups) load(path string) (backup, bool) {
	var kept backup
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &kept) != nil {
		return backup{}, false
	}
	return kept, true
}

func (b Backups) save(path string, kept backup) error {
	text, err := json.Marshal(kept)
	if err == nil {
		err = os.MkdirAll(b.Dir, 0o700)
	}
	if err != nil {
		return errs.Wrap(errs.Failed, "keep a backup", err)
	}
	root, err := os.OpenRoot(b.Dir)
	if err != nil {
		return errs.Wrap(errs.Failed, "keep a backup", err)
	}
	defer root.Close()
	return errs.Wrap(errs.Failed, "keep a backup", replace(root, filepath.Base(path), text, 0o600, nil))
}

func sum(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}
