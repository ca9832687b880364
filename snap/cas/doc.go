// Package cas is the content-addressed store that drivers keep captured
// contents in: objects named by the hash of what they hold, kept once however
// many snapshots, layers and apps hold the same, and found from named roots.
//
// An object is a blob (bytes) or a node (bytes, and the hashes of the objects
// it refers to). A root is a durable name for one object and, through it, for
// everything that is reachable from there: one snapshot is one root. An object
// that no root reaches is garbage, and its space is collected in time.
//
//	b := store.Begin()
//	defer b.Discard()
//	h, err := b.Blob(content)
//	n, err := b.Node(data, []cas.Hash{h})
//	err = b.Commit(cas.Root{Name: "files/app-1/fs-1", Hash: n})
//
// Nothing that a Batch wrote is durable before its Commit returned; then all of it is.
package cas
