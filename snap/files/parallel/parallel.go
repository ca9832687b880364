// Package parallel runs numbered pieces of work on several goroutines.
package parallel

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
)

// Each calls do for 0 to n-1, at most that many at a time, and joins their errors. It is for work that waits.
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

// InRuns calls do for 0 to n-1 on as many workers as there are processors, up to four. It is
// for work that computes. Each worker makes its own do, and gets neighbouring numbers, which
// often are files of one folder; end is called when it is done. The first error stops all workers.
func InRuns(n int, worker func() (do func(i int) error, end func())) error {
	const run = 8
	workers := min(runtime.GOMAXPROCS(0), 4, (n+run-1)/run)
	var next atomic.Int64
	return Each(workers, max(workers, 1), func(int) error {
		do, end := worker()
		defer end()
		for {
			from := int(next.Add(run)) - run
			for i := from; i < min(from+run, n); i++ {
				if err := do(i); err != nil {
					next.Store(int64(n)) // the others end too
					return err
				}
			}
			if from >= n {
				return nil
			}
		}
	})
}
