package remote

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
)

// ledger is what a host remembers of a place: which objects are in packs there, and which entries of the log it wrote. It is a
// file of frames, each with a length and a checksum, and only grows until a prune writes it anew. Reading ends at the first frame
// that is not whole: what comes after is forgotten, and so sent again. A ledger is not safe for concurrent use.
type ledger struct {
	f     *os.File
	known map[snap.Hash]struct{} // objects in packs; those below a known node are known too
	state
	intents []intent
	lost    *Lost // another host writes to the place; until this one has written its next entry
}

// state is what a ledger's frames add up to.
type state struct {
	Packs   []noted  `json:"packs,omitempty"`   // all that were sent and not removed
	Pending int      `json:"pending,omitempty"` // so many of the last of them are named by no entry yet
	Entries []logged `json:"entries,omitempty"` // oldest first
	Sent    []Sent   `json:"sent,omitempty"`    // oldest first; what was sent again, after what was sent of it before
	Next    int64    `json:"next"`              // number of the next entry
	Prev    []byte   `json:"prev"`              // hash of the last entry
	Garbage []string `json:"garbage,omitempty"` // packs that an entry says are removed, and that may still be there
	// To are the recipients for all of whom is sealed what is relied on.
	To []string `json:"to,omitempty"`
}

// pending returns the packs that no entry names yet.
func (s *state) pending() []noted { return s.Packs[len(s.Packs)-s.Pending:] }

// noted is a pack that was sent.
type noted struct {
	Pack
	// Refs has, for each node in order, the number of its refs (a varint) and the first bytes of each: what below a node is needed can be told
	// without reading the bucket. Two objects that begin alike are kept or removed together.
	Refs []byte `json:"refs,omitempty"`
	// Dead has a bit for each node, in order: it is set for those below which something may be missing.
	Dead []byte `json:"dead,omitempty"`
	Bad  bool   `json:"bad,omitempty"` // the pack is damaged, or not all recipients can read it
}

// shortLen is the length of a ref in noted.Refs.
const shortLen = 8

// appendRefs adds the refs of a node to what a ledger notes of its pack.
func appendRefs(p []byte, refs []snap.Hash) []byte {
	p = binary.AppendUvarint(p, uint64(len(refs)))
	for _, r := range refs {
		p = append(p, r[:shortLen]...)
	}
	return p
}

// dead reports whether a bit is set.
func dead(bits []byte, i int) bool { return i/8 < len(bits) && bits[i/8]&(1<<(i%8)) != 0 }

// bury sets a bit.
func bury(bits []byte, i int) []byte {
	for len(bits) <= i/8 {
		bits = append(bits, 0)
	}
	bits[i/8] |= 1 << (i % 8)
	return bits
}

// logged is an entry of the log that this host wrote.
type logged struct {
	Seq   int64    `json:"seq"`
	Sum   []byte   `json:"sum"`
	Size  int64    `json:"size"`
	Packs []string `json:"packs,omitempty"` // the names of those that it says are there
	Bad   bool     `json:"bad,omitempty"`   // the entry is damaged, or not all recipients can read it
}

// Sent is a checkpoint that an entry of the log holds.
type Sent struct {
	Seq   int64     `json:"seq"` // number of the entry; 0: it was lost
	ID    string    `json:"id"`
	At    time.Time `json:"at"`
	About []byte    `json:"about"`
	Left  []string  `json:"left,omitempty"`
	First int64     `json:"first,omitempty"` // as in Checkpoint
	// Roots are the hashes of its snapshots.
	Roots [][]byte `json:"roots,omitempty"`
	// Doubt says that part of it may be damaged or missing, or not readable for all recipients: it is to be sent again.
	Doubt bool `json:"doubt,omitempty"`
}

// Lost says that another host took the place over.
type Lost struct {
	Writer string    `json:"writer"`
	Seq    int64     `json:"seq"` // number of the entry by which this host saw it
	Seen   time.Time `json:"seen"`
}

// intent is an entry that may have been written.
type intent struct {
	Seq   int64  `json:"seq"`
	Sum   []byte `json:"sum"`
	Size  int64  `json:"size"`
	Named int    `json:"named"` // how many of the pending packs it names
	Sent  *Sent  `json:"sent,omitempty"`
	// Removed is what a prune removes.
	Removed *removed `json:"removed,omitempty"`
	Bad     bool     `json:"bad,omitempty"` // not all recipients can read it
}

// frame is one record of a ledger: one of its fields is set.
type frame struct {
	Place  string   `json:"place,omitempty"`
	State  *state   `json:"state,omitempty"`
	Pack   *noted   `json:"pack,omitempty"`
	Intent *intent  `json:"intent,omitempty"`
	Wrote  []byte   `json:"wrote,omitempty"` // the sum of an intent that was carried out
	Reset  *reset   `json:"reset,omitempty"`
	Lost   *Lost    `json:"lost,omitempty"`
	Forget *forget  `json:"forget,omitempty"`
	Swept  bool     `json:"swept,omitempty"` // the garbage was deleted
	To     []string `json:"to,omitempty"`    // the recipients from now on
}

// forget says that these packs and entries of the log cannot be relied on.
type forget struct {
	Packs   []string `json:"packs"`
	Entries []int64  `json:"entries,omitempty"`
}

// reset forgets all packs. The next entry has the number Next. Doubt says that what was sent may be there no more.
type reset struct {
	Next  int64  `json:"next"`
	Prev  []byte `json:"prev"`
	Doubt bool   `json:"doubt,omitempty"`
}

const (
	frameHeader = 8
	maxFrame    = 256 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openLedger reads the ledger of a place, or begins it.
func openLedger(path, place string) (*ledger, error) {
	l, good, err := readLedger(path, place)
	if err != nil {
		return nil, err
	}
	if l.f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, errs.Wrap(errs.Failed, "open the ledger", err)
	}
	err = l.f.Truncate(good)
	if err == nil {
		_, err = l.f.Seek(good, 0)
	}
	if err == nil && good == 0 {
		if err = durable.Sync(filepath.Dir(path)); err == nil {
			err = l.write(frame{Place: place})
		}
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, "open the ledger", errors.Join(err, l.f.Close()))
	}
	return l, nil
}

// openLedger opens the ledger of the place, and notes who the recipients are. Who only looks at the place may have none.
func (p *Place) openLedger() (*ledger, error) {
	l, err := openLedger(p.cfg.Ledger, p.cfg.Name)
	if err != nil {
		return nil, err
	}
	if to := p.recipients(); to != nil && !slices.Equal(to, l.To) {
		if err := l.write(frame{To: to}); err != nil {
			return nil, errs.Also(err, l.close())
		}
	}
	return l, nil
}

// readLedger returns what openLedger would, without a change to the ledger's file.
func (p *Place) readLedger() (*ledger, error) {
	l, _, err := readLedger(p.cfg.Ledger, p.cfg.Name)
	l.sealFor(p.recipients())
	return l, err
}

// recipients returns the texts that name the recipients.
func (p *Place) recipients() (list []string) {
	for _, r := range p.cfg.Recipients {
		list = append(list, fmt.Sprint(r))
	}
	return list
}

// readLedger reads the ledger of a place, without a change to its file. good is the length of what is whole.
func readLedger(path, place string) (l *ledger, good int64, err error) {
	l = &ledger{known: map[snap.Hash]struct{}{}, state: state{Next: 1}}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, 0, nil
	}
	if err != nil {
		return l, 0, errs.Wrap(errs.Failed, "read the ledger", err)
	}
	for rest := data; ; {
		if len(rest) < frameHeader {
			return l, good, nil
		}
		n := int(binary.LittleEndian.Uint32(rest))
		if n > maxFrame || n > len(rest)-frameHeader {
			return l, good, nil
		}
		body := rest[frameHeader : frameHeader+n]
		var fr frame
		if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(rest[4:]) || json.Unmarshal(body, &fr) != nil {
			return l, good, nil
		}
		if good == 0 && fr.Place != place {
			return l, 0, nil // of another place
		}
		if l.apply(fr) != nil {
			return l, good, nil
		}
		rest = rest[frameHeader+n:]
		good += int64(frameHeader + n)
	}
}

// write adds a frame, durably; but one that costs no more than requests if a power cut takes it, together with those after it: packs are
// sent again that are not noted, an entry is looked for whose writing is not, unless the place is lost without it.
func (l *ledger) write(fr frame) error {
	p, err := fr.encode()
	if err == nil {
		_, err = l.f.Write(p)
	}
	if cheap := fr.Pack != nil || fr.Wrote != nil && l.lost == nil || fr.Swept; err == nil && !cheap {
		err = l.f.Sync()
	}
	if err == nil {
		err = l.apply(fr)
	}
	return errs.Wrap(errs.Failed, "write the ledger", err)
}

// encode returns a frame's bytes.
func (fr frame) encode() ([]byte, error) {
	body, err := json.Marshal(fr)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "", err)
	}
	head := make([]byte, frameHeader, frameHeader+len(body))
	binary.LittleEndian.PutUint32(head, uint32(len(body)))
	binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(body, castagnoli))
	return append(head, body...), nil
}

// rewrite replaces the ledger's file by one that says the same in few frames. The ledger is not to be written on after that.
func (l *ledger) rewrite(path, place string) error {
	var text []byte
	for _, fr := range []frame{{Place: place}, {State: &l.state}} {
		p, err := fr.encode()
		if err != nil || len(p) > maxFrame {
			return err // it goes on as it is
		}
		text = append(text, p...)
	}
	return errs.Wrap(errs.Failed, "write the ledger", durable.WriteFile(path, text, 0o600))
}

// apply changes what is in memory as a frame says.
func (l *ledger) apply(fr frame) error {
	switch {
	case fr.State != nil:
		is := ledger{state: *fr.State}
		if is.Pending < 0 || is.Pending > len(is.Packs) {
			return errs.New(errs.Corrupt, "", "the ledger is damaged")
		}
		if err := is.learnAll(); err != nil {
			return err
		}
		l.state, l.known = is.state, is.known
	case fr.Pack != nil:
		if err := l.learn(fr.Pack); err != nil {
			return err
		}
		l.Packs = append(l.Packs, *fr.Pack)
		l.Pending++
	case fr.Intent != nil:
		l.intents = append(l.intents, *fr.Intent)
	case fr.Wrote != nil:
		return l.wrote(fr.Wrote)
	case fr.Reset != nil:
		l.judge() // later, nobody knows what they need
		for i := range l.Sent {
			c := &l.Sent[i]
			c.Doubt = c.Doubt || fr.Reset.Doubt || c.Roots == nil // an earlier version sent it, and its entry may be one that is not read any more
			if c.Seq >= fr.Reset.Next {                           // its entry is there no more, and the number will be another one's
				c.Seq, c.First = 0, 0
			}
		}
		l.Sent = slices.CompactFunc(l.Sent, func(a, b Sent) bool { return a.ID == b.ID && a.Seq == b.Seq }) // those that lost their numbers, each once
		*l = ledger{f: l.f, known: map[snap.Hash]struct{}{}, state: state{Sent: l.Sent, Next: fr.Reset.Next, Prev: fr.Reset.Prev, To: l.To}, lost: l.lost}
	case fr.Lost != nil:
		l.lost = fr.Lost
	case fr.Forget != nil:
		return l.forget(fr.Forget)
	case fr.Swept:
		l.Garbage = nil
	case fr.To != nil:
		l.sealFor(fr.To)
	}
	return nil
}

// sealFor sets the recipients. If one was added, nothing that was sent until now is relied on any more: that one cannot read it.
func (l *ledger) sealFor(to []string) {
	was := l.To
	l.To = to
	if was == nil || !slices.ContainsFunc(to, func(r string) bool { return !slices.Contains(was, r) }) {
		return
	}
	for i := range l.Packs {
		l.Packs[i].Bad = true
	}
	for i := range l.Entries {
		l.Entries[i].Bad = true
	}
	for i := range l.Sent {
		l.Sent[i].Doubt = true
	}
	for i := range l.intents {
		in := &l.intents[i]
		in.Bad = true
		if in.Sent != nil {
			in.Sent.Doubt = true
		}
	}
	l.known = map[snap.Hash]struct{}{}
}

// learn adds the objects of a pack to those that are known.
func (l *ledger) learn(k *noted) error {
	list, err := k.objects()
	nodes := 0
	for _, o := range list {
		if !k.Bad && !(o.node && dead(k.Dead, nodes)) {
			l.known[o.hash] = struct{}{}
		}
		if o.node {
			nodes++
		}
	}
	return err
}

func (l *ledger) learnAll() error {
	l.known = map[snap.Hash]struct{}{}
	for i := range l.Packs {
		if err := l.learn(&l.Packs[i]); err != nil {
			return err
		}
	}
	return nil
}

// wrote applies the intent of the entry with this hash: it is the last of the log now.
func (l *ledger) wrote(sum []byte) error {
	in := l.intentOf(sum)
	if in == nil {
		return nil
	}
	l.Next, l.Prev = in.Seq+1, in.Sum
	e := logged{Seq: in.Seq, Sum: in.Sum, Size: in.Size, Bad: in.Bad}
	n := max(0, min(in.Named, l.Pending))
	for _, k := range l.pending()[:n] {
		e.Packs = append(e.Packs, k.Name)
	}
	l.Pending -= n
	l.Entries = append(l.Entries, e)
	if in.Sent != nil {
		at := len(l.Sent)
		for i, c := range l.Sent {
			if c.ID == in.Sent.ID {
				at = i + 1
			}
		}
		l.Sent = slices.Insert(l.Sent, at, *in.Sent)
	}
	l.intents, l.lost = nil, nil
	if in.Removed != nil {
		return l.remove(in.Removed)
	}
	return nil
}

// forget applies a forget. The nodes are forgotten below which something is damaged. So the next push of a checkpoint that has one of them looks
// at all below it, and sends what is not known to be elsewhere.
func (l *ledger) forget(f *forget) error {
	for i := range l.Entries {
		e := &l.Entries[i]
		e.Bad = e.Bad || slices.Contains(f.Entries, e.Seq)
	}
	for i := range l.Packs {
		k := &l.Packs[i]
		k.Bad = k.Bad || slices.Contains(f.Packs, k.Name)
	}
	l.buryAll()
	wrote := l.wroteEntries()
	for i := range l.Sent {
		_, known := wrote[l.Sent[i].Seq]
		l.Sent[i].Doubt = l.Sent[i].Doubt || known
	}
	for _, in := range l.intents {
		if in.Sent != nil {
			in.Sent.Doubt = true
		}
	}
	return l.learnAll()
}

// buryAll sets the bits of the nodes below which something is damaged or missing.
func (l *ledger) buryAll() {
	there, err := l.find(nil)
	for i := range l.Packs {
		k := &l.Packs[i]
		if err != nil { // an earlier version's ledger does not say what is below a node
			k.Dead = bytes.Repeat([]byte{0xff}, len(k.Index)/(8*len(snap.Hash{}))+1) // more bits than it has objects
			continue
		}
		k.Dead = slices.Clone(k.Dead)
		for _, c := range there.pack(i) {
			if c.node >= 0 && !there.whole(c.hash[:]) {
				k.Dead = bury(k.Dead, c.node)
			}
		}
	}
}

// judge takes the doubt from the checkpoints that are whole: those whose entry is not damaged, and of which each part is in a pack that is not. Of
// a checkpoint that was sent more than once, whoever reads the log takes the last entry that can be read.
func (l *ledger) judge() {
	if !slices.ContainsFunc(l.Sent, func(c Sent) bool { return c.Doubt }) {
		return
	}
	there, err := l.find(nil)
	if err != nil {
		return // all that were sent before the damage was found stay in doubt
	}
	wrote := l.wroteEntries()
	later := map[string]bool{} // a later entry, which can be read, has the checkpoint in doubt
	for i := len(l.Sent) - 1; i >= 0; i-- {
		c := &l.Sent[i]
		e, known := wrote[c.Seq]
		if known { // else it was sent before the ledger was begun anew, and needs nothing that is in it
			c.Doubt = e.Bad || slices.ContainsFunc(c.Roots, func(root []byte) bool { return !there.whole(root) })
		}
		c.Doubt = c.Doubt || later[c.ID]
		later[c.ID] = later[c.ID] || c.Doubt && !e.Bad
	}
}

// wroteEntries returns the entries of which the ledger knows, by number.
func (l *ledger) wroteEntries() map[int64]logged {
	all := map[int64]logged{}
	for _, e := range l.Entries {
		all[e.Seq] = e
	}
	return all
}

func (l *ledger) intentOf(sum []byte) *intent {
	for i := range l.intents {
		if string(l.intents[i].Sum) == string(sum) {
			return &l.intents[i]
		}
	}
	return nil
}

// status returns what the ledger says of the place.
func (l *ledger) status() (s Status) {
	l.judge()
	s = Status{Lost: l.lost, Packs: len(l.Packs)}
	at := map[string]int{}
	var all []Sent // each once
	for _, c := range l.Sent {
		if i, again := at[c.ID]; !again {
			at[c.ID] = len(all)
			all = append(all, c)
		} else if !c.Doubt {
			all[i] = c
		}
	}
	for _, c := range all {
		if c.Doubt {
			s.Doubtful = append(s.Doubtful, c)
		} else {
			s.Sent = append(s.Sent, c)
		}
	}
	for _, k := range l.Packs {
		s.Bytes += k.Size
	}
	for _, e := range l.Entries {
		s.Bytes += e.Size
	}
	return s
}

// first returns the number of the entry by which a checkpoint was sent first; 0 if there is none.
func (l *ledger) first(id string) (seq int64) {
	for _, c := range l.Sent {
		if c.ID == id {
			seq = cmp.Or(seq, c.First, c.Seq)
		}
	}
	return seq
}

func (l *ledger) has(id string) bool {
	return l.first(id) > 0 && slices.ContainsFunc(l.status().Sent, func(c Sent) bool { return c.ID == id })
}

func (l *ledger) close() error { return l.f.Close() }
