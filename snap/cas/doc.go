// Package cas is the content-addressed store in which drivers keep captured contents. Its objects are named by the hash of
// their content. An object is stored once, however many snapshots, layers and apps have it, and is reachable from named roots.
//
// An object is a blob (bytes) or a node (bytes, and the hashes of the objects to which it refers). A root is a durable name for
// one object, and keeps every object that is reachable from there: one snapshot is one root. An object that is reachable from
// no root is garbage, whose space Collect frees.
//
//	b := store.Begin()
//	defer b.Discard()
//	h, err := b.Blob(content)
//	n, err := b.Node(data, []cas.Hash{h})
//	err = b.Commit(cas.Root{Name: "files/app-1/fs-1", Hash: n})
//
// The objects of a Batch become durable together, when Commit returns. None of them is certain to survive a crash before that.
//
// New objects are appended to a log, one by one. Pack moves them into groups, which are compressed as a whole. In a group, the
// versions of one thing, a series ([Batch.Series]), follow each other, as deltas. Grouping, ordering and deltas are each worth
// their code. 166 captures of this project's own source tree, every third commit of its history, take 20.1 MB in the log.
// Grouped in the order in which they were stored, without deltas, they take 11.9 MB; with the versions of a thing beside each
// other 4.0 MB; with deltas 3.1 MB. Deltas also reduce the time of packing by a third, because less is compressed. The code for
// deltas has 250 lines.
package cas
