package files

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/rights"
	"mulligan/testkit"
)

// testRightsStayWithContents plays random histories of a workspace in which its owner,
// another user and root make, change, move and link files, with owners, special bits,
// capabilities and access lists of every kind, and takes them back in every way.
// After each restore:
//
//   - each path's content, owner, group, mode, capabilities, trusted attributes and access
//     list were seen together at that path before, but for ordinary files of the owner's that a revert merged;
//   - no file or folder that was there before has got other rights where it is;
//   - the owner can read no other's file whose content he could not read at any time
//     before, nor by letting himself into a folder of his own.
//
// 15 histories, 1000 with MULLIGAN_TEST_LONG=1.
func testRightsStayWithContents(t *testing.T) {
	histories := 15
	if long() {
		histories = 1000
	}
	total, played := map[string]int{}, 0
	for i := range histories {
		if !t.Run(fmt.Sprint(i), func(t *testing.T) { played++; playHistory(t, total) }) {
			t.FailNow()
		}
	}
	t.Logf("%d histories: %v", played, total)
	for _, what := range []string{"rolled back", "scoped", "reverted", "forced", "merged", "undone", "refused", "left for rights", "left for overlaps"} {
		if total[what] == 0 && played > 40 { // fewer where -run asks for one
			t.Errorf("nothing was %s in %d histories: %v", what, played, total)
		}
	}
}

// saga is a workspace with its actors, and what was seen of it.
type saga struct {
	*own
	t      *testing.T
	r      *rand.Rand
	other  *somebody
	seen   map[string]map[string]bool // tuples, by path
	shown  map[string]bool            // contents that the owner could read
	marks  []snap.Mark
	states []snap.SnapshotID
	total  map[string]int
	n      int
}

func playHistory(t *testing.T, total map[string]int) {
	h := &saga{own: newOwn(t), t: t, r: testkit.Rand(t), other: newSomebody(t, otherID),
		seen: map[string]map[string]bool{}, shown: map[string]bool{}, total: total}
	for _, p := range []string{"d", "d/f"} {
		h.owner.must(t, func() error { return os.Mkdir(h.in(p), 0o755) })
	}
	for _, p := range []string{"a", "b", "d/a", "d/b", "d/f/a"} {
		h.owner.write(t, h.in(p), poem, 0o644)
	}
	h.look()
	for range 2 + h.r.IntN(3) {
		for range 1 + h.r.IntN(5) {
			h.act()
			h.look()
			if h.r.IntN(3) == 0 {
				h.states = append(h.states, h.site.capture(t).ID)
			}
		}
		h.takeBack()
		h.look()
	}
}

var paths = []string{"a", "b", "d", "d/a", "d/b", "d/f", "d/f/a"}

func (h *saga) path() string { return h.in(paths[h.r.IntN(len(paths))]) }

// act has one of the three do something. What the kernel refuses is not done.
func (h *saga) act() {
	who := h.r.IntN(10)
	switch {
	case who < 5:
		_ = h.owner.do(func() error { return h.one("owner's") })
	case who < 6:
		_ = h.other.do(func() error { return h.one("other's") })
	default:
		if h.r.IntN(2) == 0 {
			_ = h.one("root's")
		} else {
			_ = h.rootsOwn()
		}
	}
}

// one is something that anybody may do.
func (h *saga) one(whose string) error {
	p, q := h.path(), h.path()
	modes := []os.FileMode{0o644, 0o600, 0o755, 0o640, 0o400, 0o700, 0o755 | os.ModeSetuid, 0o755 | os.ModeSetgid}
	mode := modes[h.r.IntN(len(modes))]
	h.n++
	text := fmt.Sprintf("%s %d\n%s", whose, h.n, poem)
	switch h.r.IntN(15) {
	case 0:
		return os.WriteFile(p, []byte(text), mode)
	case 1, 2, 12, 13, 14:
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		lines := strings.SplitAfter(string(b), "\n")
		lines[h.r.IntN(len(lines))] = fmt.Sprint(whose, h.n, "\n")
		return os.WriteFile(p, []byte(strings.Join(lines, "")), 0)
	case 3:
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if err := os.WriteFile(p+".n", b, mode.Perm()); err != nil {
			return err
		}
		return cmp.Or(os.Rename(p+".n", p), os.RemoveAll(p+".n"))
	case 4, 5:
		return os.Rename(p, q)
	case 6:
		return os.Chmod(p, mode)
	case 7:
		return os.Mkdir(p, mode.Perm())
	case 8:
		return os.Link(p, q)
	case 9:
		return os.Remove(p)
	case 10:
		return unix.Setxattr(p, "user.note", []byte(text[:8]), 0)
	}
	return unix.Setxattr(p, rights.AccessListName, aclText(otherID, uint16(h.r.IntN(8))), 0)
}

// rootsOwn is something that only root may do.
func (h *saga) rootsOwn() error {
	p := h.path()
	ids := []int{0, ownerID, otherID}
	switch h.r.IntN(7) {
	case 0:
		return os.Lchown(p, ids[h.r.IntN(3)], ids[h.r.IntN(3)])
	case 1:
		return unix.Setxattr(p, "security.capability", []byte(capNetRaw), 0)
	case 2:
		return unix.Setxattr(p, "trusted.note", fmt.Append(nil, h.r.IntN(3)), 0)
	case 3:
		return unix.Removexattr(p, "trusted.note")
	case 4:
		h.n++
		return cmp.Or(os.WriteFile(p, fmt.Appendf(nil, "secret %d\n%s", h.n, poem), 0o600), os.Chmod(p, 0o600))
	case 5:
		return cmp.Or(os.Mkdir(p, 0o700), os.WriteFile(p+"/a", fmt.Appendf(nil, "kept apart %d\n%s", h.n, poem), 0o644))
	}
	return unix.Setxattr(p, rights.AccessListName, aclText(ownerID, uint16(h.r.IntN(8))), 0)
}

// aclText is an access list that lets one user do something.
func aclText(uid uint32, perm uint16) []byte {
	return encodeList([]listEntry{{1, 6, ^uint32(0)}, {tagUser, uint32(perm), uid}, {tagGroupOwner, 4, ^uint32(0)}, {16, 7, ^uint32(0)}, {32, 0, ^uint32(0)}})
}

// listEntry is an entry of an access list (linux/posix_acl_xattr.h).
type listEntry struct {
	tag  uint16
	perm uint32
	id   uint32
}

// Tags of such entries.
const (
	tagUser       = 0x02
	tagGroupOwner = 0x04
	tagGroup      = 0x08
)

// encodeList writes an access list as the kernel wants it.
func encodeList(list []listEntry) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range list {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, uint16(e.perm))
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// tuples says everything that goes together about each path.
func (h *saga) tuples() map[string]string {
	h.t.Helper()
	out := map[string]string{}
	must(h.t, filepath.WalkDir(h.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == h.dir {
			return err
		}
		s := tuple(h.t, p)
		for _, w := range strings.Fields(s) {
			if strings.HasPrefix(w, "user.") { // anybody's to give
				s = strings.Replace(s, w, "", 1)
			}
		}
		out[p] = strings.TrimRight(s, " ")
		return nil
	}))
	return out
}

// readable are the contents that the owner can read at present, or could after letting
// himself into folders of his own, which he may at any time.
func (h *saga) readable() map[string]string {
	h.t.Helper()
	out := map[string]string{}
	for p := range h.tuples() {
		if !h.mayComeTo(filepath.Dir(p)) {
			continue
		}
		f, err := os.OpenFile(p, unix.O_PATH|unix.O_NOFOLLOW, 0)
		must(h.t, err)
		_ = h.owner.do(func() error {
			// The file itself is opened, whatever folders it is in.
			b, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
			if err == nil {
				out[string(b)] = p
			}
			return err
		})
		must(h.t, f.Close())
	}
	return out
}

// mayComeTo reports whether each folder from the workspace's to dir is the owner's own or
// one that lets him search it.
func (h *saga) mayComeTo(dir string) bool {
	h.t.Helper()
	for ; dir != h.dir; dir = filepath.Dir(dir) {
		f, err := os.OpenFile(dir, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
		must(h.t, err)
		var is unix.Stat_t
		must(h.t, unix.Fstat(int(f.Fd()), &is))
		err = h.owner.do(func() error { return unix.Fstatat(int(f.Fd()), ".", &unix.Stat_t{}, 0) })
		must(h.t, f.Close())
		if err != nil && is.Uid != ownerID {
			return false
		}
	}
	return true
}

// look notes what there is now, when the journal has it.
func (h *saga) look() {
	h.marks = append(h.marks, h.flush(h.t))
	for p, s := range h.tuples() {
		if h.seen[p] == nil {
			h.seen[p] = map[string]bool{}
		}
		h.seen[p][s] = true
	}
	for text := range h.readable() {
		h.shown[text] = true
	}
}

// takeBack takes something back, in one way or another, and checks.
func (h *saga) takeBack() {
	if h.r.IntN(6) == 0 {
		h.excludeOthers()
	}
	h.states = append(h.states, h.site.capture(h.t).ID)
	before, held := h.tuples(), h.hold()
	how := h.restoreSomehow()
	for p, now := range h.tuples() {
		if h.seen[p][now] {
			continue
		}
		rel, _ := filepath.Rel(h.dir, p)
		if slices.Contains(how.Merged, rel) && h.ordinary(p, now) {
			continue
		}
		h.t.Errorf("never so: %s\nbefore:   %s\n%+v", now, before[p], how)
	}
	for text, p := range h.readable() {
		own := strings.HasPrefix(strings.Fields(h.tuples()[p])[2], fmt.Sprint(ownerID, ":"))
		if !h.shown[text] && !own {
			h.t.Errorf("the owner can read %s, which could never be read: %.20q\nbefore: %s\nnow:    %s\n%+v", p, text, before[p], h.tuples()[p], how)
		}
	}
	h.release(held)
}

// excludeOthers changes what is excluded, as the owner may at any time.
func (h *saga) excludeOthers() {
	h.stop()
	h.cfg.Exclude = [][]string{nil, {"b"}, {"/d/f/a"}}[h.r.IntN(3)]
	h.site.open(h.t)
	h.follow(h.t)
	h.marks = []snap.Mark{h.flush(h.t)}
}

// ordinary reports whether a tuple is one of the owner's ordinary files, with rights that such a one had at p before.
func (h *saga) ordinary(p, now string) bool {
	for was := range h.seen[p] {
		if strings.HasPrefix(strings.Fields(now)[2], fmt.Sprint(ownerID, ":")) && sameButContent(was, now) {
			return true
		}
	}
	return false
}

// sameButContent reports whether two tuples of files differ only in their contents and
// ordinary bits, and are of files without any others.
func sameButContent(a, b string) bool {
	x, y := strings.Fields(a), strings.Fields(b)
	if len(x) < 6 || len(y) != len(x) {
		return false
	}
	for i := range x {
		content := i == 4 || i == 5
		if i == 1 {
			if len(x[i]) != 6 || len(y[i]) != 6 || x[i][:3] != "100" || y[i][:3] != "100" {
				return false
			}
		} else if !content && x[i] != y[i] {
			return false
		}
	}
	return !strings.Contains(a, "trusted.") && !strings.Contains(a, "security.")
}

// heldThing is a file or folder that is open while something is taken back.
type heldThing struct {
	f    *os.File
	path string
	own  *manifest.Entry
}

func (h *saga) hold() (all []heldThing) {
	for p := range h.tuples() {
		f, err := os.OpenFile(p, unix.O_PATH|unix.O_NOFOLLOW, 0)
		must(h.t, err)
		own, _, err := rights.ReadEntry(int(f.Fd()))
		must(h.t, err)
		all = append(all, heldThing{f, p, own})
	}
	return all
}

// release checks that what was there has the rights that it had, and lets go of it.
func (h *saga) release(all []heldThing) {
	for _, x := range all {
		now, _, err := rights.ReadEntry(int(x.f.Fd()))
		must(h.t, err)
		must(h.t, x.f.Close())
		owners := x.own.Uid == ownerID && now.Uid == ownerID && x.own.Kind() == manifest.DirKind
		if !rights.SameRights(x.own, now) && !(owners && rights.FileOwner(ownerID).KeepsFolder(x.own, now)) {
			h.t.Errorf("%s, which was there, had the rights %+v and has %+v", x.path, x.own, now)
		}
	}
}

func (h *saga) count(what string) { h.total[what]++ }

func (h *saga) restoreSomehow() (how snap.Reverted) {
	h.n++
	id, base := snap.RestoreID(fmt.Sprintf("op-%d", h.n)), h.states[len(h.states)-1]
	target := h.states[h.r.IntN(len(h.states))]
	var sw snap.Switch
	var err error
	switch kind := h.r.IntN(4); kind {
	case 0:
		h.count("rolled back")
		sw, err = h.Prepare(h.t.Context(), snap.RestoreRequest{ID: id, Target: target, Base: base})
	case 1:
		h.count("scoped")
		sw, err = h.PrepareScoped(h.t.Context(), snap.RestoreRequest{ID: id, Target: target, Base: base}, []string{paths[h.r.IntN(len(paths))]})
	default:
		req := snap.RevertRequest{ID: id, Base: base, Writes: h.someWrites(), Force: h.r.IntN(2) == 0}
		h.count("reverted")
		if req.Force {
			h.count("forced")
		}
		if len(req.Writes) == 0 {
			return how
		}
		sw, how, err = h.PrepareRevert(h.t.Context(), req)
	}
	h.total["taken back"] += len(how.Paths)
	h.total["merged"] += len(how.Merged)
	for _, c := range how.Left {
		h.count("left for " + string(c.Why))
	}
	if errs.KindOf(err) == errs.Conflict && err != nil {
		h.count("refused")
		return how
	}
	must(h.t, err)
	if sw != nil {
		h.carryOut(sw)
	}
	return how
}

// someWrites are the writes of some of the latest acts.
func (h *saga) someWrites() (all []snap.Write) {
	for i := max(1, len(h.marks)-8); i < len(h.marks); i++ {
		if h.r.IntN(2) == 0 {
			continue
		}
		w, err := h.Writes(h.t.Context(), h.marks[i-1], h.marks[i])
		must(h.t, err)
		all = append(all, w...)
	}
	return all
}

func (h *saga) carryOut(sw snap.Switch) {
	must(h.t, sw.Commit(h.t.Context()))
	if h.r.IntN(4) == 0 {
		h.count("undone")
		must(h.t, sw.Undo(h.t.Context()))
	}
	p, err := sw.Check(h.t.Context())
	must(h.t, err)
	if !p.Match {
		h.t.Errorf("%+v", p)
	}
	must(h.t, sw.Finish(h.t.Context()))
}
