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
//
// What is stored lies loose in a log at first. Pack moves it into groups, compressed together, in which
// versions of one thing, a series ([Batch.Series]), follow each other, as deltas. Each of the three pays for
// its lines. Of 166 captures of this project's own source tree, every third commit of its
// history, 20.1 MB lie loose. Grouped in the order in which they were stored, without deltas,
// they take 11.9 MB; with the versions of a thing beside each other 4.0 MB; with deltas 3.1 MB, and packing takes
// two thirds of the time, since less is compressed. Making and reading deltas is 250 lines.
package cas
