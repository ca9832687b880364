// Package merge undoes a change of one entry and keeps the changes that were made after it. It is a three-way merge of
// metadata, link targets and texts.
package merge

import (
	"bytes"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/rights"
)

// Merger undoes writes of single entries.
type Merger struct {
	s         *cas.Store
	b         *cas.Batch       // gets the merged contents
	FileOwner rights.FileOwner // the user whose ordinary files and folders are merged
	now       time.Time
}

// New returns a Merger for the ordinary files and folders of fileOwner. It adds merged contents to b.
func New(s *cas.Store, b *cas.Batch, fileOwner rights.FileOwner) *Merger {
	return &Merger{s: s, b: b, FileOwner: fileOwner, now: time.Now()}
}

// Merge returns the entry that a path gets when writes are undone. before is the entry before these writes, left the entry that
// they left, and now the present entry. nil means that the path does not exist. merged reports whether the result differs from
// all three. why is not "" if they conflict.
func (u *Merger) Merge(left, now, before *manifest.Entry) (e *manifest.Entry, merged bool, why snap.ConflictReason, err error) {
	switch {
	case Alike(now, left):
		return before, false, "", nil
	case Alike(now, before):
		return now, false, "", nil
	case now == nil:
		return nil, false, snap.Removed, nil
	case left == nil && manifest.IsFolder(now) && manifest.IsFolder(before):
		return now, false, "", nil // the folder was created again meanwhile
	case left == nil:
		return nil, false, snap.Replaced, nil
	case before == nil:
		return nil, false, snap.Edited, nil
	case now.Mount || now.Kind() != left.Kind() || now.Kind() != before.Kind():
		return nil, false, snap.Retyped, nil
	}
	return u.parts(left, now, before)
}

// Alike reports whether a and b are equal, except for times, hard-link groups, and the content of folders.
func Alike(a, b *manifest.Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SameBody(b) && a.Mode == b.Mode && a.Uid == b.Uid && a.Gid == b.Gid && manifest.EqualXattrs(a, b)
}

// parts merges three entries of one type, field by field, if they are ordinary entries of the file owner with the same rights.
// Other entries are a conflict, because their rights belong to the content as a whole.
func (u *Merger) parts(left, now, before *manifest.Entry) (*manifest.Entry, bool, snap.ConflictReason, error) {
	if !u.mergeable(left, now, before) {
		return nil, false, snap.Rights, nil
	}
	e := *now
	e.SetGroup("")
	link, rdev, xattrs := now.Link(), now.Rdev(), before.Xattrs()
	ok := three(&e.Mode, left.Mode, now.Mode, before.Mode) &&
		three(&link, left.Link(), now.Link(), before.Link()) &&
		three(&rdev, left.Rdev(), now.Rdev(), before.Rdev())
	if !manifest.EqualXattrs(now, left) {
		xattrs = now.Xattrs()
		ok = ok && (manifest.EqualXattrs(left, before) || manifest.EqualXattrs(now, before))
	}
	if !ok {
		return nil, false, snap.Overlaps, nil
	}
	e.SetLink(link)
	e.SetRdev(rdev)
	e.SetXattrs(xattrs)
	if now.IsFile() {
		if why, err := u.content(&e, left, now, before); why != "" || err != nil {
			return nil, false, why, err
		}
	}
	switch {
	case Alike(&e, before):
		return before, false, "", nil
	case e.Kind() == unix.S_IFREG && (e.Hash != now.Hash || e.Size != now.Size):
		e.Mtime = inode.Time{Sec: u.now.Unix(), Nsec: uint32(u.now.Nanosecond())}
	}
	return &e, !Alike(&e, now), "", nil
}

// mergeable reports whether all three are ordinary entries of the file owner, with the same rights.
func (u *Merger) mergeable(left, now, before *manifest.Entry) bool {
	for _, e := range []*manifest.Entry{left, now, before} {
		if !u.FileOwner.Plain(e) || !rights.SameRights(e, now) {
			return false
		}
	}
	return true
}

// three makes the change from left to before in now, and sets to to the result. It returns false if now conflicts with this
// change.
func three[T comparable](to *T, left, now, before T) bool {
	switch {
	case now == left:
		*to = before
	case left != before && now != before:
		return false
	default:
		*to = now
	}
	return true
}

// content makes the change from left's content to before's in that of now, and sets e's content to the result.
func (u *Merger) content(e, left, now, before *manifest.Entry) (snap.ConflictReason, error) {
	type body struct {
		hash snap.Hash
		size int64
	}
	of := func(x *manifest.Entry) body { return body{x.Hash, x.Size} }
	to := of(now)
	if three(&to, of(left), of(now), of(before)) {
		e.Hash, e.Size = to.hash, to.size
		return "", nil
	}
	var texts [3]string
	for i, x := range []*manifest.Entry{left, now, before} {
		if x.Size > maxMerge {
			return snap.TooLarge, nil
		}
		var buf bytes.Buffer
		err := manifest.EachPiece(u.s, x, func(_ int64, p []byte) error { buf.Write(p); return nil })
		if err != nil {
			return "", err
		}
		if !isText(buf.Bytes()) {
			return snap.Binary, nil
		}
		texts[i] = buf.String()
	}
	text, ok := mergeText(texts[0], texts[1], texts[2])
	if !ok {
		return snap.Overlaps, nil
	}
	return u.put(e, []byte(text))
}

func (u *Merger) put(e *manifest.Entry, text []byte) (why snap.ConflictReason, err error) {
	if len(text) > maxMerge {
		return snap.TooLarge, nil
	}
	e.Size, e.Hash = int64(len(text)), snap.Hash{}
	if len(text) > 0 {
		e.Hash, err = u.b.Blob(slices.Clip(text))
	}
	return "", err
}
