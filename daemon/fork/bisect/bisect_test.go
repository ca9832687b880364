package bisect

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"mulligan/errs"
	"mulligan/testkit"
)

// TestFound finds the first bad state in sequences of all lengths, wherever it is, with and without a good state that is known, with states
// that are skipped, and with one to five tests at a time. The number of tests grows with the logarithm of the length.
func TestFound(t *testing.T) {
	r := testkit.Rand(t)
	for range 2000 {
		last := 1 + r.IntN(100)
		first, jobs := -1, 1+r.IntN(5)
		bad := 1 + r.IntN(last)
		skips := map[int]bool{}
		if r.IntN(2) == 0 {
			for range r.IntN(10) {
				if s := r.IntN(last); s > 0 {
					skips[s] = true
				}
			}
		}
		if r.IntN(2) == 0 {
			first = r.IntN(bad)
			delete(skips, first)
		}
		var tests atomic.Int32
		s := Search{Last: last, First: first, Jobs: jobs, Test: func(_ context.Context, i int) (Verdict, error) {
			tests.Add(1)
			switch {
			case skips[i]:
				return Skip, nil
			case i >= bad:
				return Bad, nil
			}
			return Good, nil
		}}
		got, err := s.Run(t.Context())
		if err != nil || got.Unsure != "" {
			t.Fatalf("%d states, bad from %d, skipped %v: %+v, %v", last+1, bad, skips, got, err)
		}
		wantGood, wantBad := bad-1, bad
		for skips[wantGood] {
			wantGood--
		}
		for skips[wantBad] {
			wantBad++
		}
		if got.Good != wantGood || got.Bad != wantBad || len(s.Skipped(got)) != wantBad-wantGood-1 {
			t.Fatalf("%d states, bad from %d, skipped %v, first %d: %+v, want %d and %d", last+1, bad, skips, first, got, wantGood, wantBad)
		}
		if n := int(tests.Load()); len(skips) == 0 && n > 2*7+4+2*jobs*4 {
			t.Fatalf("%d tests for %d states with %d at a time", n, last+1, jobs)
		}
	}
}

// TestUnsure does not believe a test that answers now this, now that.
func TestUnsure(t *testing.T) {
	r := testkit.Rand(t)
	var mu sync.Mutex
	said := 0
	for range 500 {
		seen := map[int]int{}
		s := Search{Last: 20, First: 0, Jobs: 2, Test: func(_ context.Context, i int) (Verdict, error) {
			mu.Lock()
			defer mu.Unlock()
			seen[i]++
			switch {
			case i == 20 && seen[i] == 1:
				return Bad, nil
			case i == 0 && seen[i] == 1:
				return Good, nil
			case r.IntN(2) == 0:
				return Bad, nil
			}
			return Good, nil
		}}
		got, err := s.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got.Unsure != "" {
			said++
		}
	}
	if said < 350 { // three of four are found by the second test of two states alone
		t.Errorf("%d of 500 searches are unsure", said)
	}
}

// TestRefused says what is wrong where no state is bad, where the good one is bad, and where none is good.
func TestRefused(t *testing.T) {
	always := func(v Verdict) func(context.Context, int) (Verdict, error) {
		return func(context.Context, int) (Verdict, error) { return v, nil }
	}
	for _, s := range []Search{
		{Last: 5, First: -1, Test: always(Good)}, {Last: 5, First: -1, Test: always(Skip)}, {Last: 5, First: 0, Test: always(Bad)},
		{Last: 5, First: -1, Test: always(Bad)}, {Last: 0, First: -1, Test: always(Bad)},
	} {
		if got, err := s.Run(t.Context()); errs.KindOf(err) != errs.Conflict || errs.HintOf(err) == "" {
			t.Errorf("%+v: %+v, %v", s, got, err)
		}
	}
	broken := errors.New("broken")
	s := Search{Last: 5, First: 0, Test: func(context.Context, int) (Verdict, error) { return "", broken }}
	if _, err := s.Run(t.Context()); !errors.Is(err, broken) {
		t.Errorf("a test that cannot run: %v", err)
	}
}
