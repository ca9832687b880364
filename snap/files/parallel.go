package files

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
)

// together calls do for 0 to n-1, at most so many at a time. It is for what waits.
func together(n, most int, do func(i int) error) error {
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

// inRuns does 0 to n-1 with as many workers as there are processors, up to
// four. It is for what computes. A worker is given neighbours, which often are
// of one folder. The first error ends all.
func inRuns(n int, worker func() (do func(i int) error, end func())) error {
	const run = 8
	workers := min(runtime.GOMAXPROCS(0), 4, (n+run-1)/run)
	var next atomic.Int64
	return together(workers, max(workers, 1), func(int) error {
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
