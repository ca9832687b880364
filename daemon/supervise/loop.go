package supervise

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// errQuit is the error of work that Close interrupts.
var errQuit = errs.New(errs.Unavailable, "", "supervision has ended; the next daemon takes the app over")

// loop is the goroutine that does all work. first is the work that resume returned.
func (p *Process) loop(first func() error) {
	defer close(p.ended)
	if err := first(); err != nil && !errors.Is(err, errQuit) {
		p.set("failed", "failed", err.Error())
	}
	for {
		var exited <-chan string
		if p.child != nil {
			exited = p.child.exited
		}
		select {
		case <-p.quit:
			return
		case r := <-p.requests:
			r.reply <- r.do()
		case how := <-exited:
			p.fell(how)
		case <-p.again:
			p.restart()
		}
	}
}

// resume finds out from the record what an earlier daemon left, and returns the work that remains. before is the Process of this
// daemon that supervised the command until now, or nil.
func (p *Process) resume(before *Process) (first func() error, err error) {
	nothing := func() error { return nil }
	rec, err := p.load()
	if before != nil && before.unsure {
		rec, err, p.unsure = before.rec, nil, true
	}
	if err != nil {
		return nil, err
	}
	p.rec = rec
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	defer func() { p.status.Since = rec.Since }() // the time of the record, and not the present
	switch {
	case rec.Run == "":
		p.set("inactive", "dead", "")
		return nothing, nil
	case rec.Boot != boot:
		p.set("inactive", "dead", "the machine was restarted")
		p.status.Asked = !rec.Up && !rec.Failed
		return nothing, nil
	}
	if err := p.follow(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if !rec.Up {
		p.rest(rec)
		list, err := members(rec)
		if len(list) > 0 { // a stop was interrupted
			p.set("deactivating", "stop-sigterm", rec.Result)
			return func() error { return p.down(rec.Failed, rec.Result) }, nil
		}
		return nothing, err
	}
	if rec.PID == 0 {
		if rec, err = p.findStarted(rec); err != nil {
			return nil, err
		}
	}
	c, err := p.adopt(rec.ident)
	if errors.Is(err, unix.ESRCH) || rec.PID == 0 {
		return func() error { p.fell(unknown); return nil }, nil
	}
	if err != nil {
		return nil, err
	}
	p.child = c
	p.set("active", "running", "success")
	return nothing, nil
}

// findStarted looks for the command of a start that was interrupted before its pid was recorded.
func (p *Process) findStarted(rec record) (record, error) {
	list, err := members(rec)
	if err != nil {
		return rec, err
	}
	list = slices.DeleteFunc(list, func(q proc) bool { return q.PID != q.session })
	if len(list) == 0 {
		return rec, nil
	}
	// Its children may have sessions of their own. The command is the process that started first.
	rec.ident = slices.MinFunc(list, func(a, b proc) int { return cmp.Compare(a.Start, b.Start) }).ident
	return rec, p.save(rec)
}

// rest sets the state of a command that is down and will not be restarted.
func (p *Process) rest(rec record) {
	if rec.Failed {
		p.set("failed", "failed", rec.Result)
	} else {
		p.set("inactive", "dead", rec.Result)
	}
}

// start does the work of Start in the loop.
func (p *Process) start() error {
	if p.child != nil && p.child.alive() && p.rec.Up { // otherwise a stop has failed halfway
		return nil
	}
	p.child, p.again, p.restarts = nil, nil, nil
	p.set("activating", "start", "")
	err := p.launch(0)
	if err == nil {
		err = p.awaitStartup()
	}
	if err == nil {
		p.set("active", "running", "success")
		return nil
	}
	if worse := p.down(true, err.Error()); worse != nil {
		return fmt.Errorf("%w; and then: %w", err, worse)
	}
	return err
}

// awaitStartup waits for the startup time, and returns an error if the command ends within it.
func (p *Process) awaitStartup() error {
	timer := time.NewTimer(p.time.startup)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-p.quit:
		return nil
	case how := <-p.child.exited:
		p.child = nil
		return errs.New(errs.Failed, "", "the command ended at once: %s", how).WithHint("see its output in %s", p.LogPath())
	}
}

// launch ends the processes that are left of the last run, and starts a new run.
func (p *Process) launch(restarts int) error {
	if err := p.end(); err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	rec := record{Run: runID(p.cfg.StateDir), Boot: boot, Up: true, Restarts: restarts, Since: time.Now()}
	if err := p.save(rec); err != nil {
		return err
	}
	c, err := p.spawn(rec.Run)
	if err != nil {
		return err
	}
	p.child, rec.ident = c, c.ident
	return p.save(rec)
}

// stop does the work of Stop in the loop.
func (p *Process) stop() error {
	p.again = nil
	rec := p.rec
	if list, err := members(rec); err != nil || !rec.Up && len(list) == 0 {
		return err
	}
	if rec.Up {
		before := rec
		rec.Up, rec.Failed, rec.Result = false, false, "success"
		if err := p.save(rec); err != nil { // before the first signal, so that nothing restarts the command
			_ = p.save(before) // err is the error to return; close tries again
			return err
		}
	}
	p.set("deactivating", "stop-sigterm", "")
	return p.down(false, "success")
}

// down ends every process of the run, and records that the command stays down.
func (p *Process) down(failed bool, result string) error {
	if err := p.end(); err != nil {
		return err
	}
	rec := p.rec
	rec.Up, rec.ident, rec.Failed, rec.Result, rec.Since = false, ident{}, failed, result, time.Now()
	if rec.Run != "" {
		if err := p.save(rec); err != nil {
			return err
		}
	}
	p.rest(rec)
	return nil
}

// fell handles a command that ended by itself.
func (p *Process) fell(how string) {
	p.child = nil
	if !p.rec.Up { // a stop failed halfway, and the command ended later: it stays down
		if err := p.down(false, how); err != nil {
			p.set("failed", "failed", how+"; "+err.Error())
		}
		return
	}
	p.set("deactivating", "final-sigterm", how)
	if err := p.end(); err != nil {
		if !errors.Is(err, errQuit) {
			p.set("failed", "failed", how+"; "+err.Error())
		}
		return
	}
	now := time.Now()
	p.restarts = slices.DeleteFunc(p.restarts, func(t time.Time) bool { return now.Sub(t) > p.time.window })
	if len(p.restarts) >= p.time.burst {
		result := fmt.Sprintf("%s, for the %dth time in %v", how, len(p.restarts)+1, p.time.window)
		if err := p.down(true, result); err != nil {
			p.set("failed", "failed", result+"; "+err.Error())
		}
		return
	}
	p.again = time.After(p.time.backoff << len(p.restarts))
	p.set("activating", "auto-restart", how)
}

// restart starts the command again after it ended by itself.
func (p *Process) restart() {
	p.again = nil
	p.restarts = append(p.restarts, time.Now())
	if err := p.launch(p.rec.Restarts + 1); err != nil {
		p.fell(err.Error())
		return
	}
	p.set("active", "running", "success")
}

// end ends every process of the run: with SIGTERM, and with SIGKILL after StopTimeout.
func (p *Process) end() error {
	sig, refused := unix.SIGTERM, error(nil)
	kill, giveUp := time.NewTimer(p.cfg.StopTimeout), time.NewTimer(p.cfg.StopTimeout+p.time.killWait)
	defer kill.Stop()
	defer giveUp.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var known []proc
	for {
		var err error
		if known, err = members(p.rec, known...); err != nil {
			return err
		}
		if len(known) == 0 {
			p.child = nil
			p.drain()
			return nil
		}
		refused = signal(known, sig)
		for waiting := true; waiting; {
			select {
			case <-tick.C: // look at the known processes only, and not at all of /proc, while some of them live
				waiting = sig == unix.SIGTERM && slices.ContainsFunc(known, func(q proc) bool { return q.alive() })
			case <-kill.C:
				sig, waiting = unix.SIGKILL, false
			case <-giveUp.C:
				return (&errs.Error{Kind: errs.Failed, Message: "not even SIGKILL ended " + describe(known), Err: refused}).
					WithHint("these processes hang in the kernel, probably on a disk or a network file system, or they belong to another user")
			case <-p.quit:
				return errQuit
			}
		}
	}
}

// signal sends sig to all of the processes, and returns an error that names those it could not signal.
func signal(list []proc, sig unix.Signal) error {
	var failed error
	for _, q := range list {
		if err := q.signal(sig); err != nil {
			failed = errors.Join(failed, fmt.Errorf("signal pid %d: %w", q.PID, err))
		}
	}
	return failed
}

// runID returns a fresh id for a run of the command with that state folder.
func runID(stateDir string) string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return runPrefix(stateDir) + hex.EncodeToString(b[:])
}

// runPrefix begins the ids of all runs of the command with that state folder.
func runPrefix(stateDir string) string {
	sum := sha256.Sum256([]byte(stateDir))
	return hex.EncodeToString(sum[:8]) + "-"
}
