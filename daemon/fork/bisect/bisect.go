// Package bisect finds the first bad state in a sequence of states by testing few of them, several at a time.
package bisect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"mulligan/errs"
)

// Verdict is the result of a test of a state.
type Verdict string

// The verdicts. Skip means that the state can be neither good nor bad, as when it cannot be tested.
const (
	Good Verdict = "good"
	Bad  Verdict = "bad"
	Skip Verdict = "skip"
)

// Search is a search in the states 0 to Last, of which an earlier part is good and the later part is bad.
type Search struct {
	Last int // the index of a state that should be bad
	// First is the index of a state that should be good; less than 0: one is looked for.
	First int
	Jobs  int // how many states are tested at a time
	// Test tests a state. It is called in several goroutines, and a second time for two of the states.
	Test func(ctx context.Context, state int) (Verdict, error)

	seen map[int]Verdict
}

// Result is the end of a search.
type Result struct {
	Good, Bad int // the last good state and the first bad one; states between them were skipped
	// Unsure says which verdicts contradict each other, so that nothing was found; "" if none do.
	Unsure string
}

// Run returns the last good and the first bad state. The error is of kind errs.Conflict if the states are not as the caller says:
// Last is good, First is bad, or no state is good.
func (s *Search) Run(ctx context.Context) (Result, error) {
	s.seen = map[int]Verdict{}
	s.Jobs = max(s.Jobs, 1)
	if err := s.ends(ctx); err != nil {
		return Result{}, err
	}
	r := Result{Good: s.First, Bad: s.Last}
	if s.First < 0 {
		if err := s.gallop(ctx, &r); err != nil || r.Unsure != "" {
			return r, err
		}
	}
	for {
		list := s.between(r.Good, r.Bad)
		if len(list) == 0 {
			err := s.confirm(ctx, &r)
			return r, err
		}
		if err := s.test(ctx, spread(list, s.Jobs)); err != nil {
			return r, err
		}
		if s.narrow(&r); r.Unsure != "" {
			return r, nil
		}
	}
}

// ends tests the states that the caller has named.
func (s *Search) ends(ctx context.Context) error {
	list := []int{s.Last}
	if s.First >= 0 {
		list = append(list, s.First)
	}
	if err := s.test(ctx, list); err != nil {
		return err
	}
	switch {
	case s.seen[s.Last] != Bad:
		return errs.New(errs.Conflict, "", "the last state is not bad: the test says %s", s.seen[s.Last]).
			WithHint("name a checkpoint that is bad with --bad, or check the command: a state is bad if it fails")
	case s.First >= 0 && s.seen[s.First] != Good:
		return errs.New(errs.Conflict, "", "the state that is said to be good is not: the test says %s", s.seen[s.First]).
			WithHint("name an older checkpoint with --good, or leave it out")
	}
	return nil
}

// gallop looks for a good state: it goes back from the bad one in steps that double.
func (s *Search) gallop(ctx context.Context, r *Result) error {
	r.Good = -1
	for step := 1; ; {
		var list []int
		for len(list) < s.Jobs && (len(list) == 0 || list[len(list)-1] > 0) {
			list = append(list, max(0, s.Last-step))
			step *= 2
		}
		if s.Last == 0 {
			list = nil
		}
		if err := s.test(ctx, list); err != nil {
			return err
		}
		if s.narrow(r); r.Unsure != "" || r.Good >= 0 {
			return nil
		}
		if len(list) == 0 || list[len(list)-1] == 0 {
			return errs.New(errs.Conflict, "", "no checkpoint is good: the test fails or skips back to the oldest").
				WithHint("check the command: a state is good if it succeeds")
		}
	}
}

// between lists the states between two that were not tested.
func (s *Search) between(good, bad int) (list []int) {
	for i := good + 1; i < bad; i++ {
		if _, done := s.seen[i]; !done {
			list = append(list, i)
		}
	}
	return list
}

// spread chooses at most n of the states, at equal distances.
func spread(list []int, n int) (chosen []int) {
	n = min(n, len(list))
	for k := range n {
		chosen = append(chosen, list[(k+1)*len(list)/(n+1)])
	}
	return chosen
}

// test tests states at the same time, and keeps their verdicts.
func (s *Search) test(ctx context.Context, list []int) error {
	verdicts := make([]Verdict, len(list))
	problems := make([]error, len(list))
	var all sync.WaitGroup
	for k, state := range list {
		all.Go(func() { verdicts[k], problems[k] = s.Test(ctx, state) })
	}
	all.Wait()
	for k, state := range list {
		s.seen[state] = verdicts[k]
	}
	return errors.Join(problems...)
}

// narrow moves the ends of the result to the verdicts between them.
func (s *Search) narrow(r *Result) {
	bad, good := r.Bad, r.Good
	for state, v := range s.seen {
		switch {
		case v == Bad:
			bad = min(bad, state)
		case v == Good:
			good = max(good, state)
		}
	}
	r.Bad, r.Good = bad, good
	if good > bad {
		r.Unsure = fmt.Sprintf("state %d is bad and the later state %d is good", bad, good)
	}
}

// confirm tests the two states of the result again: a test that says something else now cannot be trusted.
func (s *Search) confirm(ctx context.Context, r *Result) error {
	if err := s.test(ctx, []int{r.Good, r.Bad}); err != nil {
		return err
	}
	for state, was := range map[int]Verdict{r.Good: Good, r.Bad: Bad} {
		if now := s.seen[state]; now != was {
			r.Unsure = fmt.Sprintf("the test of state %d said first %s and then %s", state, was, now)
		}
	}
	return nil
}

// Skipped lists the states between the result's that were skipped.
func (s *Search) Skipped(r Result) (list []int) {
	for state, v := range s.seen {
		if v == Skip && state > r.Good && state < r.Bad {
			list = append(list, state)
		}
	}
	slices.Sort(list)
	return list
}
