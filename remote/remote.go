// Package remote keeps the checkpoints of an app in an object store, sealed, so that they outlive the host.
//
// # What is in the bucket
//
// Each app has a place, a folder with a random name:
//
//	<place>/packs/<random name>   objects of the content store, compressed and sealed: a pack
//	<place>/log/<number>          the log: entry 1, 2, 3, …, each written once and never changed
//
// An entry of the log says which packs were sent before it, and what a checkpoint consists of. It is written last, under the next
// number, and only if there is no such object (If-None-Match: *). What no entry names is garbage. Checkpoints and packs are removed by one
// more entry that says so, after which the packs are deleted; entries stay ([Place.Prune]). Packs and entries are sealed
// with age for recipients: the host that writes them cannot read them, and whoever has an identity can, with nothing else from
// that host. No name tells anything of what it names.
//
// # Who writes
//
// An entry begins with the random name of its writer, readable for all. A host that finds another writer's entry under the number
// that it was about to write has lost the place to that writer, and stops. So two hosts never write at once, and it costs nobody
// a request to know that: the log is the lease. To take the place over is to write the next entry on purpose ([Place.TakeOver]).
//
// # Who may write
//
// Whoever knows a recipient can seal. So each log has a key, which is in each of its entries, sealed; beside it, an entry has a proof that only
// who has the key can compute (HMAC-SHA-256). The host that began the log has the key, and so has who read the log with an identity: a host that
// cloned the app. An entry of anybody else is a problem that is told, is not read, and is no reason to stop writing without a word. Whoever may also
// delete could begin the whole log anew, with a key of its own: [KeyName] tells two keys apart.
//
// # What the host remembers
//
// A host cannot read what it sent. Its ledger, a file, notes which objects are in which pack, and which packs an entry names. A ledger
// that is lost, damaged or older than the log is not believed: what it does not know is sent again, and never removed.
//
// # How damage is found
//
// An entry holds its number, its place and the hash of the entry before it, and the hash of each pack's sealed bytes. Each object
// is named by the hash of its content, down to the snapshot's own. So an object of the bucket that is flipped, cut, absent or
// exchanged by another is found before anything is believed; what no entry can tell is whether the last of them were removed
// ([History.Warnings] tells when packs are left that no entry names).
package remote

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"mulligan/errs"
	"mulligan/remote/s3store"
	"mulligan/snap"
)

// Bucket is an object store. *s3store.Store is one.
type Bucket interface {
	// PutNew stores an object that does not exist yet; the error is of kind errs.Conflict if it does, with other content.
	// After success, data is the caller's again.
	PutNew(ctx context.Context, name string, data []byte) error
	// Get returns the content of an object; the error is of kind errs.NotFound if there is none.
	Get(ctx context.Context, name string) ([]byte, error)
	// List returns the objects whose names begin with prefix and come after the name after, in the order of their names.
	List(ctx context.Context, prefix, after string) ([]s3store.Object, error)
	// Delete deletes an object. An object that does not exist is no error.
	Delete(ctx context.Context, name string) error
	// Locks reports whether new objects are locked for a time, and Versions whether what is deleted is kept as an older version.
	Locks(ctx context.Context) (bool, error)
	Versions(ctx context.Context) (bool, error)
}

// Objects is where objects are read from. *cas.Store is one.
type Objects interface {
	// Object reads an object and checks it against its hash. refs are the objects to which a node refers.
	Object(h snap.Hash) (data []byte, refs []snap.Hash, node bool, err error)
}

// Part is the snapshot of one layer.
type Part struct {
	Layer    snap.Layer
	Portable snap.Portable
}

// Checkpoint is a checkpoint as it is in an entry of the log.
type Checkpoint struct {
	ID    string    `json:"id"`
	Made  time.Time `json:"made"`
	Parts []part    `json:"parts"`
	// Left says, in whole sentences, which layers are not on the remote.
	Left []string `json:"left,omitempty"`
	// About is the caller's own description of the checkpoint, and App of its app at that time.
	About []byte `json:"about"`
	App   []byte `json:"app"`
	// First is the number of the entry by which the checkpoint was sent first, if it was sent again: it keeps its place among the others.
	First int64 `json:"first,omitempty"`
}

// part is a Part as JSON has it.
type part struct {
	Layer  snap.Layer `json:"layer"`
	Driver string     `json:"driver"`
	Object string     `json:"object"` // in hex
	Meta   []byte     `json:"meta"`
}

// SetParts sets the snapshots that the checkpoint consists of.
func (c *Checkpoint) SetParts(list []Part) {
	c.Parts = nil
	for _, p := range list {
		c.Parts = append(c.Parts, part{p.Layer, p.Portable.Driver, hex.EncodeToString(p.Portable.Object[:]), p.Portable.Meta})
	}
}

// Snapshots returns the snapshots that the checkpoint consists of.
func (c *Checkpoint) Snapshots() (list []Part, err error) {
	for _, p := range c.Parts {
		h, err := hex.DecodeString(p.Object)
		if err != nil || len(h) != len(snap.Hash{}) {
			return nil, errs.New(errs.Corrupt, "", "the record of %s is damaged: %q is not a hash", c.ID, p.Object)
		}
		list = append(list, Part{p.Layer, snap.Portable{Driver: p.Driver, Object: snap.Hash(h), Meta: p.Meta}})
	}
	return list, nil
}

// NewName returns a random name, for a place or a writer: 32 hex digits.
func NewName() string {
	var p [16]byte
	rand.Read(p[:]) // never fails
	return hex.EncodeToString(p[:])
}

// isName reports whether s is a name that NewName could return.
func isName(s string) bool {
	p, err := hex.DecodeString(s)
	return err == nil && len(p) == 16 && s == strings.ToLower(s)
}

// Places returns those of folders that can be places.
func Places(folders []string) (list []string) {
	for _, f := range folders {
		if isName(f) {
			list = append(list, f)
		}
	}
	return list
}

func logName(place string, seq int64) string { return fmt.Sprintf("%s/log/%016d", place, seq) }

func packName(place, name string) string { return place + "/packs/" + name }
