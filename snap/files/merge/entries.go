// Package merge takes a change of one entry back while keeping what came after it: a three-way merge
// of metadata, targets and texts.
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

// Merger takes writes back from single entries.
type Merger struct {
	s         *cas.Store
	b         *cas.Batch       // merged contents go there
	FileOwner rights.FileOwner // whose ordinary things are merged
	now       time.Time
}

// New returns a Merger for ordinary things of the file owner's. Merged contents go into b.
func New(s *cas.Store, b *cas.Batch, fileOwner rights.FileOwner) *Merger {
	return &Merger{s: s, b: b, FileOwner: fileOwner, now: time.Now()}
}

// Merge returns what is to be at a path where left was left by writes, before was
// before them, and now is there at present. merged reports that it is none of the
// three; why is other than "" where they don't go together.
func (u *Merger) Merge(left, now, before *manifest.Entry) (e *manifest.Entry, merged bool, why snap.ConflictReason, err error) {
	switch {
	case Alike(now, left):
		return before, false, "", nil
	case Alike(now, before):
		return now, false, "", nil
	case now == nil:
		return nil, false, snap.Removed, nil
	case left == nil && manifest.IsFolder(now) && manifest.IsFolder(before):
		return now, false, "", nil // somebody made the folder again
	case left == nil:
		return nil, false, snap.Replaced, nil
	case before == nil:
		return nil, false, snap.Edited, nil
	case now.Mount || now.Kind() != left.Kind() || now.Kind() != before.Kind():
		return nil, false, snap.Retyped, nil
	}
	return u.parts(left, now, before)
}

// Alike reports whether a and b are the same but for times, other names, and a
// folder's content.
func Alike(a, b *manifest.Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SameBody(b) && a.Mode == b.Mode && a.Uid == b.Uid && a.Gid == b.Gid && manifest.EqualXattrs(a, b)
}

// parts unites three things of one type, a part at a time, if nothing about them is
// more than their owner, the fileOwner, may give to any content. All else goes back as a whole or not at all.
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

// mergeable reports whether all three are ordinary things of the file owner's, with the same rights.
func (u *Merger) mergeable(left, now, before *manifest.Entry) bool {
	for _, e := range []*manifest.Entry{left, now, before} {
		if !u.FileOwner.Plain(e) || !rights.SameRights(e, now) {
			return false
		}
	}
	return true
}

// three sets to to what a change from left to before makes of now.
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

// content sets e's content to what a change from left's to before's makes of now's.
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
