// Package parallel runs numbered pieces of work in several goroutines.
package parallel

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
)

// Each calls do for 0 to n-1, at most most calls at a time, and joins their errors. It is for work that waits.
func Each(n, most int, do func(i int) error) error {
	all := make([]error, n)
	var wg sync.WaitGroup
	free := make(chan struct{}, most)
	for i := range n {
		free <- struct{}{}
		wg.Go(func() {
			all[i] = do(i)
			<-free
		})
	}
	wg.Wait()
	return errors.Join(all...)
}

// InRuns calls do for 0 to n-1 with as many workers as there are processors, but at most four. It is for work that computes.
// Each worker makes its own do, and gets runs of adjacent numbers, which are often files of one folder. When a worker ends,
// InRuns calls its end. The first error stops all workers.
func InRuns(n int, worker func() (do func(i int) error, end func())) error {
	const run = 8
	workers := min(runtime.GOMAXPROCS(0), 4, (n+run-1)/run)
	var next atomic.Int64
	work := func(int) error {
		do, end := worker()
		defer end()
		for {
			from := int(next.Add(run)) - run
			for i := from; i < min(from+run, n); i++ {
				if err := do(i); err != nil {
					next.Store(int64(n)) // stops the other workers
					return err
				}
			}
			if from >= n {
				return nil
			}
		}
	}
	if workers == 1 {
		return work(0)
	}
	return Each(workers, max(workers, 1), work)
}
