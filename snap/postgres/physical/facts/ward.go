package facts

import "mulligan/snap/postgres/physical/jsonrows"

// Ward names the store of a cluster in physical mode, and the owner of the store.
type Ward struct {
	Store    string `json:"store"`
	UID, GID int
	Bin      string // folder of the server's programs; "" if they are not on this host
	Apart    bool   // the store's folder is root's to remove
}

// WardRecord is the name of the record with a Ward.
const WardRecord = "ward"

// WardOf returns the recorded ward of the cluster with this StateDir, whose driver need not be open. If there is none, the error is
// fs.ErrNotExist.
func WardOf(stateDir string) (w Ward, err error) {
	err = jsonrows.Folder(stateDir).Get(".", WardRecord, &w)
	return w, err
}
