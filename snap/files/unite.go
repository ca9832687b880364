package files

import (
	"bytes"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
)

// uniter takes writes back from single entries.
type uniter struct {
	s      *cas.Store
	b      *cas.Batch // merged contents go there
	holder holder     // whose ordinary things are merged
	now    time.Time
}

// unite gives what is to be at a path where left was left by writes, before was
// before them, and now is there at present. merged reports that it is none of the
// three; why is other than "" where they don't go together.
func (u *uniter) unite(left, now, before *entry) (e *entry, merged bool, why snap.ConflictReason, err error) {
	switch {
	case alike(now, left):
		return before, false, "", nil
	case alike(now, before):
		return now, false, "", nil
	case now == nil:
		return nil, false, snap.Removed, nil
	case left == nil && isFolder(now) && isFolder(before):
		return now, false, "", nil // somebody made the folder again
	case left == nil:
		return nil, false, snap.Replaced, nil
	case before == nil:
		return nil, false, snap.Edited, nil
	case now.mount || now.kind() != left.kind() || now.kind() != before.kind():
		return nil, false, snap.Retyped, nil
	}
	return u.merge(left, now, before)
}

// alike reports whether a and b are the same but for times, other names, and a
// folder's content.
func alike(a, b *entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.sameBody(b) && a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && equalXattrs(a, b)
}

// merge unites three things of one type, a part at a time, if nothing about them is
// more than their owner, the holder, may give to any content. All else goes back as a whole or not at all.
func (u *uniter) merge(left, now, before *entry) (*entry, bool, snap.ConflictReason, error) {
	if !u.mergeable(left, now, before) {
		return nil, false, snap.Rights, nil
	}
	e := *now
	e.setGroup("")
	link, rdev, xattrs := now.link(), now.rdev(), before.xattrs()
	ok := three(&e.mode, left.mode, now.mode, before.mode) &&
		three(&link, left.link(), now.link(), before.link()) &&
		three(&rdev, left.rdev(), now.rdev(), before.rdev())
	if !equalXattrs(now, left) {
		xattrs = now.xattrs()
		ok = ok && (equalXattrs(left, before) || equalXattrs(now, before))
	}
	if !ok {
		return nil, false, snap.Overlaps, nil
	}
	e.setLink(link)
	e.setRdev(rdev)
	e.setXattrs(xattrs)
	if now.isFile() {
		if why, err := u.content(&e, left, now, before); why != "" || err != nil {
			return nil, false, why, err
		}
	}
	switch {
	case alike(&e, before):
		return before, false, "", nil
	case e.kind() == unix.S_IFREG && (e.hash != now.hash || e.size != now.size):
		e.mtime = inode.Time{Sec: u.now.Unix(), Nsec: uint32(u.now.Nanosecond())}
	}
	return &e, !alike(&e, now), "", nil
}

// mergeable reports whether all three are ordinary things of the holder's, with the same rights.
func (u *uniter) mergeable(left, now, before *entry) bool {
	for _, e := range []*entry{left, now, before} {
		if !u.holder.plain(e) || !sameRights(e, now) {
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
func (u *uniter) content(e, left, now, before *entry) (snap.ConflictReason, error) {
	type body struct {
		hash snap.Hash
		size int64
	}
	of := func(x *entry) body { return body{x.hash, x.size} }
	to := of(now)
	if three(&to, of(left), of(now), of(before)) {
		e.hash, e.size = to.hash, to.size
		return "", nil
	}
	var texts [3]string
	for i, x := range []*entry{left, now, before} {
		if x.size > maxMerge {
			return snap.TooLarge, nil
		}
		var buf bytes.Buffer
		err := eachPiece(u.s, x, func(_ int64, p []byte) error { buf.Write(p); return nil })
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

func (u *uniter) put(e *entry, text []byte) (why snap.ConflictReason, err error) {
	if len(text) > maxMerge {
		return snap.TooLarge, nil
	}
	e.size, e.hash = int64(len(text)), snap.Hash{}
	if len(text) > 0 {
		e.hash, err = u.b.Blob(slices.Clip(text))
	}
	return "", err
}
