package watch

import "sync/atomic"

// Budget bounds the watches that several watchers have together, so that they leave some of the user's for others. A nil Budget is no bound.
// Safe for concurrent use.
type Budget struct {
	most int64
	used atomic.Int64
}

// NewBudget returns a budget of that many watches.
func NewBudget(most int64) *Budget { return &Budget{most: most} }

// take reports whether there was another watch, which the caller then has.
func (b *Budget) take() bool {
	if b == nil {
		return true
	}
	if b.used.Add(1) > b.most {
		b.used.Add(-1)
		return false
	}
	return true
}

func (b *Budget) give(n int) {
	if b != nil {
		b.used.Add(-int64(n))
	}
}
