package app

import (
	"context"
	"net"
	"slices"
	"sync"

	"mulligan/daemon/layer"
	"mulligan/errs"
)

// inside are those who run commands inside of a fork, whether or not the fork itself runs.
type inside struct {
	mu   sync.Mutex
	shut int      // how many operations let nobody in
	all  []*visit // those who are inside, or about to be
}

// visit is one who runs commands inside.
type visit struct{ leave func() }

// Enter connects to a process that runs commands inside of a fork, as [layer.Binder.Enter] does. leave must be called, and may be called
// several times.
func (s *Set) Enter(ctx context.Context, a *App) (conn *net.UnixConn, leave func(), err error) {
	var end func()
	entered := make(chan struct{}) // closed when end is known
	v := new(visit)
	v.leave = sync.OnceFunc(func() {
		<-entered
		end()
		s.Touch(a)
		a.inside.remove(v)
	})
	if !a.inside.add(v) {
		return nil, nil, errs.New(errs.Busy, "enter the fork", "%s is being kept or dropped", a.Rec().Slug).WithHint("wait for it to end and try again")
	}
	conn, end, err = s.Binder.Enter(ctx, a.Rec())
	if err != nil {
		end = func() {}
	}
	close(entered)
	if err != nil {
		v.leave()
		return nil, nil, err
	}
	return conn, v.leave, nil
}

// RunInside runs a command inside of a fork and leaves it. Of the command's output it keeps the last max bytes.
func (s *Set) RunInside(ctx context.Context, a *App, argv []string, max int) (ran layer.Ran, err error) {
	conn, leave, err := s.Enter(ctx, a)
	if err != nil {
		return ran, err
	}
	defer leave()
	return s.Binder.RunInside(ctx, a.Rec(), conn, argv, max)
}

// EndInside ends what runs inside of a fork for those who have entered it, and lets nobody in until admit is called. What runs beside the
// fork's own command, in the same namespaces, ends with that command. The caller has acquired the fork.
func (s *Set) EndInside(ctx context.Context, a *App) (admit func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, s.hostLimit(a))
	defer cancel()
	var ending sync.WaitGroup
	for _, v := range a.inside.close() {
		ending.Go(v.leave)
	}
	ended := make(chan struct{})
	go func() { ending.Wait(); close(ended) }()
	select {
	case <-ended:
		return a.inside.admit, nil
	case <-ctx.Done():
		a.inside.admit()
		return nil, errs.New(errs.Unavailable, "", "a command that runs inside of %s does not end", a.Rec().Slug).WithHint("it may wait for a disk or a network file system")
	}
}

// Occupied reports whether somebody runs a command inside of a fork.
func Occupied(a *App) bool {
	a.inside.mu.Lock()
	defer a.inside.mu.Unlock()
	return len(a.inside.all) > 0
}

// add reports whether the visit is let in.
func (in *inside) add(v *visit) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.shut > 0 {
		return false
	}
	in.all = append(in.all, v)
	return true
}

func (in *inside) remove(v *visit) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.all = slices.DeleteFunc(in.all, func(other *visit) bool { return other == v })
}

// close lets nobody in, and returns those who are.
func (in *inside) close() []*visit {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.shut++
	return slices.Clone(in.all)
}

func (in *inside) admit() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.shut--
}
