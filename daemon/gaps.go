package daemon

import (
	"context"
	"fmt"

	"mulligan/daemon/gitref"
	"mulligan/daemon/store"
	"mulligan/ipc"
	"mulligan/snap"
)

// gaps says what of the app cannot be captured or could not be given back.
func (a *app) gaps(ctx context.Context) (list []ipc.Gap) {
	for _, l := range a.layers() {
		s, ok := l.Driver.(snap.Surveyor)
		if !ok {
			continue
		}
		found, err := s.Survey(ctx)
		if err != nil {
			found = []snap.Gap{{What: fmt.Sprintf("mulligan could not find out what it cannot capture: %v.", err), Remedy: "try again"}}
		}
		for _, g := range found {
			list = append(list, ipc.Gap{Layer: string(l.Name), What: g.What, Remedy: g.Remedy, Blocks: g.Blocks})
		}
	}
	for _, g := range repositoryGaps(a.rec()) {
		list = append(list, ipc.Gap{Layer: string(snap.Files), What: g.What, Remedy: g.Remedy})
	}
	return list
}

// repositoryGaps says what of the workspace's git repository lies outside of the workspace.
func repositoryGaps(rec store.App) []gitref.Gap {
	root, err := openWorkspace(rec)
	if err != nil {
		return nil // every operation says so
	}
	defer root.Close()
	return gitref.Outside(root)
}

// repositoryWarnings is what a checkpoint's warnings say of repositoryGaps.
func repositoryWarnings(rec store.App) (words []string) {
	for _, g := range repositoryGaps(rec) {
		words = append(words, "files: "+g.What+" What to do: "+g.Remedy+".")
	}
	return words
}
