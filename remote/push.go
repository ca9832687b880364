package remote

import (
	"bytes"
	"context"
	"errors"

	"mulligan/errs"
	"mulligan/snap"
)

// atOnce is the number of packs that are sent at the same time. Of them, sealAtOnce are compressed and sealed: these are in memory before compression.
const (
	atOnce     = 6
	sealAtOnce = 2
)

// Pushed is what a push did.
type Pushed struct {
	Objects int    // objects that the remote lacked
	Packs   int    // packs sent
	Bytes   int64  // of these packs
	Already bool   // the checkpoint was there
	Status  Status // after the push
}

// Push sends a checkpoint: what the remote lacks of its objects, and the entry that names it. The objects must stay in from until
// Push returns. What a push that failed has sent is not sent again.
func (p *Place) Push(ctx context.Context, from Objects, cp Checkpoint) (res Pushed, err error) {
	op := "push " + cp.ID
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := p.openLedger()
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	defer func() {
		res.Status = l.status()
		err = errs.Wrap(errs.Failed, op, errs.Also(err, l.close()))
	}()
	if l.lost != nil {
		return res, l.lost.Err()
	}
	err = p.settle(ctx, l)
	for range 5 {
		if errors.Is(err, errOlder) {
			err = p.skipAhead(ctx, l)
		}
		if err != nil && !errors.Is(err, errWritten) {
			return res, err
		}
		if l.has(cp.ID) {
			res.Already = true
			return res, nil
		}
		err = p.push(ctx, l, from, cp, &res)
		if err == nil && !l.has(cp.ID) { // else it would be sent again and again
			err = errs.New(errs.Corrupt, "", "the checkpoint may still be damaged there: this host's notes of the remote do not say what it lacks").
				WithHint("`mulligan push --take-over` begins them anew, and sends everything again")
		}
		if err == nil {
			return res, nil
		}
	}
	return res, err
}

func (p *Place) push(ctx context.Context, l *ledger, from Objects, cp Checkpoint, res *Pushed) error {
	parts, err := cp.Snapshots()
	if err != nil {
		return err
	}
	err = p.sendAll(ctx, l, from, res, func(s *sender) error {
		for _, part := range parts {
			if err := s.walk(part.Portable.Object); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	cp.First = l.first(cp.ID)
	sent := &Sent{ID: cp.ID, About: cp.About, Left: cp.Left, First: cp.First}
	for _, part := range parts {
		sent.Roots = append(sent.Roots, part.Portable.Object[:])
	}
	return p.append(ctx, l, entry{Checkpoint: &cp}, intent{Sent: sent})
}

// sendAll sends what f gives to a sender, and returns when all of it is sent and noted.
func (p *Place) sendAll(ctx context.Context, l *ledger, from Objects, res *Pushed, f func(*sender) error) error {
	sending, cancel := context.WithCancel(ctx)
	s := &sender{p: p, l: l, from: from, ctx: sending, sealing: make(chan struct{}, sealAtOnce), seen: map[snap.Hash]struct{}{}, res: res, meter: snap.NewMeter(ctx, "sent", snap.UnitBytes, 0)}
	err := f(s)
	switch {
	case err == nil:
		err = s.end()
	case s.unread: // the next try need not send again what is on its way
		err = errs.Also(err, s.landAll())
	}
	cancel()
	s.drain()
	return err
}

// sender sends the objects that a remote lacks. Objects below a node are sent, and noted in the ledger, before it.
type sender struct {
	p    *Place
	l    *ledger
	from Objects
	ctx  context.Context
	seen map[snap.Hash]struct{}
	res  *Pushed

	unread bool // an object could not be read

	meter *snap.Meter // counts the bytes of packs

	blobs, nodes packing    // nodes are together, so that who reads a tree need not get its contents
	flying       []*sending // in the order in which they are noted
	sealing      chan struct{}
}

// sending is a pack on its way.
type sending struct {
	pack noted
	err  error
	done chan struct{}
}

func (s *sender) walk(h snap.Hash) error {
	if h.IsZero() {
		return nil
	}
	if _, ok := s.l.known[h]; ok {
		return nil
	}
	if _, ok := s.seen[h]; ok {
		return nil
	}
	if err := s.ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, "", err)
	}
	data, refs, node, err := s.from.Object(h)
	if err != nil {
		s.unread = true
		return err
	}
	for _, r := range refs {
		if err := s.walk(r); err != nil {
			return err
		}
	}
	s.seen[h] = struct{}{}
	return s.take(h, data, refs, node)
}

// take has an object sent.
func (s *sender) take(h snap.Hash, data []byte, refs []snap.Hash, node bool) error {
	s.res.Objects++
	if !node {
		s.blobs.add(h, data, nil, false)
		if s.blobs.size() < packBytes {
			return nil
		}
		return s.send(&s.blobs)
	}
	s.nodes.add(h, data, refs, true)
	if s.nodes.size() < packBytes {
		return nil
	}
	if err := s.send(&s.blobs); err != nil {
		return err
	}
	return s.send(&s.nodes)
}

// end sends what is left, and waits until all is sent and noted.
func (s *sender) end() error {
	if s.blobs.size()+s.nodes.size() <= packBytes {
		s.blobs.takeAll(&s.nodes)
	}
	for _, p := range []*packing{&s.blobs, &s.nodes} {
		if err := s.send(p); err != nil {
			return err
		}
	}
	return s.landAll()
}

// landAll waits until all packs on their way are noted.
func (s *sender) landAll() error {
	for len(s.flying) > 0 {
		if err := s.land(); err != nil {
			return err
		}
	}
	return nil
}

// send begins to send a pack, and empties it.
func (s *sender) send(p *packing) error {
	if len(p.index) == 0 {
		return nil
	}
	for len(s.flying) >= atOnce {
		if err := s.land(); err != nil {
			return err
		}
	}
	select {
	case s.sealing <- struct{}{}:
	case <-s.ctx.Done():
		return errs.Wrap(errs.Unavailable, "", s.ctx.Err())
	}
	f := &sending{done: make(chan struct{})}
	f.pack = noted{Pack: Pack{Name: NewName(), Index: p.index}, Refs: p.refs}
	data := p.data
	*p = packing{}
	s.flying = append(s.flying, f)
	go func() {
		defer close(f.done)
		f.err = s.put(&f.pack.Pack, data)
	}()
	return nil
}

// put seals a pack's data and stores them.
func (s *sender) put(p *Pack, data *bytes.Buffer) error {
	sealed := takeBuffer()
	err := sealInto(sealed, data.Bytes(), s.p.cfg.Recipients)
	<-s.sealing
	giveBuffer(data)
	if err != nil {
		return err
	}
	p.Sum, p.Size = sum(sealed.Bytes()), int64(sealed.Len())
	if err := s.p.cfg.Failpoint.At("push: pack"); err != nil {
		return err
	}
	err = s.p.cfg.Bucket.PutNew(s.ctx, packName(s.p.cfg.Name, p.Name), sealed.Bytes())
	if err == nil { // else a request may still be read from it
		giveBuffer(sealed)
	}
	return err
}

// land waits for the oldest pack on its way, and notes it.
func (s *sender) land() error {
	f := s.flying[0]
	<-f.done
	s.flying = s.flying[1:]
	if f.err != nil {
		return f.err
	}
	if err := s.p.cfg.Failpoint.At("push: sent"); err != nil {
		return err
	}
	s.res.Packs++
	s.res.Bytes += f.pack.Size
	s.meter.Add(f.pack.Size)
	return s.l.write(frame{Pack: &f.pack})
}

// drain waits for the packs that are still on their way after an error.
func (s *sender) drain() {
	for _, f := range s.flying {
		<-f.done
	}
	s.flying = nil
}
