package cas

import (
	"context"
	"fmt"
	"strings"

	"mulligan/errs"
	"mulligan/snap"
)

// Check checks all objects that are reachable from the root called name. It reads each node, and the header of each blob's
// record; if full is set, it hashes every byte. The error is of kind errs.Corrupt, and names the objects, if some are damaged
// or missing. It is of kind errs.NotFound if there is no such root.
func (s *Store) Check(ctx context.Context, name string, full bool) error {
	const op = "check the store"
	root, err := s.Root(name)
	if err != nil {
		return errs.Wrap(errs.NotFound, op, err)
	}
	return s.check(ctx, op, fmt.Sprintf("%q", name), []Hash{root.Hash}, full)
}

// CheckPresent does for all objects that are reachable from h what Check does without full.
func (s *Store) CheckPresent(ctx context.Context, h Hash) error {
	return s.check(ctx, "look for stored objects", h.String(), []Hash{h}, false)
}

// check checks what is reachable from the objects in work, which the error calls name.
func (s *Store) check(ctx context.Context, op, name string, work []Hash, full bool) error {
	var broken []string
	seen := map[Hash]bool{{}: true}
	meter := snap.NewMeter(ctx, "stored objects read", "objects", 0)
	for len(work) > 0 {
		h := work[len(work)-1]
		work = work[:len(work)-1]
		if seen[h] {
			continue
		}
		seen[h] = true
		if err := ctx.Err(); err != nil {
			return errs.Wrap(errs.Unavailable, op, err)
		}
		refs, err := s.checkObject(op, h, full)
		meter.Add(1)
		switch errs.KindOf(err) {
		case "":
			work = append(work, refs...)
		case errs.Corrupt, errs.NotFound:
			broken = append(broken, h.String())
		default:
			return err
		}
	}
	if len(broken) == 0 {
		return nil
	}
	n := len(broken)
	if n > 5 {
		broken = append(broken[:5], fmt.Sprintf("and %d more", n-5))
	}
	return errs.New(errs.Corrupt, op, "%d of the %d objects of %s are damaged or missing: %s",
		n, len(seen)-1, name, strings.Join(broken, ", ")).WithHint("use another checkpoint")
}

// checkObject checks one object and returns its refs.
func (s *Store) checkObject(op string, h Hash, full bool) ([]Hash, error) {
	s.mu.RLock()
	e := s.index[h]
	g := s.segs[e.seg]
	s.mu.RUnlock()
	if !full && g != nil && !e.has(isNode|isBad) {
		var p [headerSize]byte
		if err := readFull(g, p[:], int64(e.off)); err == nil {
			hd, ok := parseHeader(p[:], s.salt, g.seq, int64(e.off))
			if ok && (hd.hash == h || hd.kind >= kindBlobs) && int64(e.off)+hd.size() <= g.size.Load() {
				return nil, nil
			}
		}
	}
	c, err := s.read(op, h)
	return c.refs, err
}
