package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"mulligan/errs"
)

// Checked is the outcome of a Check.
type Checked struct {
	Objects int // packs and entries of the log that were looked at
	// Problems say, in whole sentences, what was found damaged or missing, and which checkpoints are in doubt. What they are about is sent again by the next pushes.
	Problems []string
}

// Check looks for everything that this host stored at the place and relies on: that it is there, with its size; if full is set,
// that it has its hash. It needs no identity. What is not as it was sent is forgotten, and the checkpoints that need it are in doubt: each is to be
// pushed again, which sends what is lacking. What an earlier check found is not relied on any more, and so not looked for again;
// a checkpoint that is in doubt is told each time, until it was sent again. Entries of the log that an earlier version wrote in a form that
// is not read any more are found as well, with full or if that version began the ledger.
func (p *Place) Check(ctx context.Context, full bool) (res Checked, err error) {
	const op = "check the remote"
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := p.openLedger()
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	defer func() { err = errs.Wrap(errs.Failed, op, errs.Also(err, l.close())) }()
	if l.lost == nil { // what a prune of this host deleted is not damaged
		if err = p.settle(ctx, l); err != nil && l.lost == nil && !errors.Is(err, errOlder) {
			return res, err
		}
	}
	there, err := p.sizes(ctx)
	if err != nil {
		return res, err
	}
	_, earlier := l.find(nil) // what else could be wrong with the ledger was found when it was opened
	want := l.stored(p.cfg.Name)
	problems := make([]string, len(want))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readAtOnce)
	for i, w := range want {
		g.Go(func() (err error) {
			problems[i], err = p.checkObject(gctx, w, there, full || earlier != nil && w.entry > 0)
			return err
		})
	}
	if err = g.Wait(); err != nil {
		return res, err
	}
	res.Objects = len(want)
	var lost forget
	for i, problem := range problems {
		if problem != "" {
			res.Problems = append(res.Problems, problem)
			lost.Packs = append(lost.Packs, want[i].packs...)
			if want[i].entry > 0 {
				lost.Entries = append(lost.Entries, want[i].entry)
			}
		}
	}
	if res.Problems != nil {
		err = l.write(frame{Forget: &lost})
	}
	for _, c := range l.status().Doubtful {
		res.Problems = append(res.Problems, fmt.Sprintf("Checkpoint %s may be damaged or missing there, or not readable for all recipients, and has not been sent again.", c.ID))
	}
	if earlier != nil {
		res.Problems = append(res.Problems, errs.Words(earlier)+".")
	}
	return res, err
}

// sizes returns the sizes of all packs and entries of the log, by name.
func (p *Place) sizes(ctx context.Context) (map[string]int64, error) {
	there := map[string]int64{}
	for _, folder := range []string{"/packs/", "/log/"} {
		list, err := p.cfg.Bucket.List(ctx, p.cfg.Name+folder, "")
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			there[o.Name] = o.Size
		}
	}
	return there, nil
}

// stored is an object that this host stored.
type stored struct {
	name  string
	what  string
	size  int64
	sum   []byte
	packs []string // what cannot be relied on if the object is damaged
	entry int64    // its number, if it is an entry of the log
}

// stored returns all objects that the ledger knows of, but those that are known to be damaged.
func (l *ledger) stored(place string) (list []stored) {
	for _, k := range l.Packs {
		if !k.Bad {
			list = append(list, stored{packName(place, k.Name), "Pack " + k.Name, k.Size, k.Sum, []string{k.Name}, 0})
		}
	}
	for _, e := range l.Entries {
		if !e.Bad { // nobody else says what is in its packs
			list = append(list, stored{logName(place, e.Seq), fmt.Sprintf("Entry %d of the log", e.Seq), e.Size, e.Sum, e.Packs, e.Seq})
		}
	}
	return list
}

// checkObject returns what is wrong with an object, as a sentence, or "".
func (p *Place) checkObject(ctx context.Context, w stored, there map[string]int64, full bool) (string, error) {
	size, ok := there[w.name]
	switch {
	case !ok:
		return w.what + " is missing.", nil
	case size != w.size:
		return fmt.Sprintf("%s has %d bytes, and had %d when it was sent.", w.what, size, w.size), nil
	case !full:
		return "", nil
	}
	data, err := p.cfg.Bucket.Get(ctx, w.name)
	switch {
	case errs.KindOf(err) == errs.NotFound:
		return w.what + " is missing.", nil
	case err == nil && !bytes.Equal(sum(data), w.sum):
		return w.what + " is not as it was sent.", nil
	case err != nil || w.entry == 0:
		return "", err
	}
	h, err := cutEntry(data)
	if err != nil || h.proof != proof(p.cfg.Key, w.name, h.writer, h.sealed) {
		return w.what + " cannot be read any more: an earlier version wrote it.", nil
	}
	return "", nil
}
