package rollback

import (
	"context"
	"errors"
	"time"

	"mulligan/daemon/events"
	"mulligan/daemon/settings"
	"mulligan/ipc"
	"mulligan/snap"
)

// stageRunner runs the stages of one operation, records how each went, and tells the client, the
// live feed and the metrics.
type stageRunner struct {
	app    ipc.AppID
	opt    *settings.Options
	events *events.Events
	notify func(ipc.Stage) // the client's; may be nil
	ran    []ipc.Stage     // those that ended, in order
}

// stage is the name of a stage and the function that does its work. The function returns
// errSkipped if the stage has nothing to do; notes say why, or what was done.
type stage struct {
	name ipc.StageName
	do   func(context.Context) (notes string, err error)
}

// errSkipped is returned by a stage that has nothing to do.
var errSkipped = errors.New("skipped")

// runAll runs stages one after the other, until one fails. It returns that stage's error.
func (s *stageRunner) runAll(ctx context.Context, stages []stage) error {
	for _, one := range stages {
		if err := s.run(ctx, one.name, one.do); err != nil {
			return err
		}
	}
	return nil
}

// run runs one stage and records how it went. A skipped stage is no error.
func (s *stageRunner) run(ctx context.Context, name ipc.StageName, do func(context.Context) (string, error)) error {
	is := ipc.Stage{Stage: name, Status: ipc.StageRunning, TS: s.opt.Now().UTC()}
	s.tell(is)
	began := time.Now()
	now := is
	progress := events.NewTeller(func(p ipc.Progress) {
		now.Notes = p.Words()
		s.tell(now)
	})
	ctx = snap.WithProgress(ctx, progress.Tell)
	err := s.opt.Failpoint.At("stage " + string(name))
	if err == nil {
		is.Notes, err = do(ctx)
	}
	progress.End()
	is.DurationMS = time.Since(began).Milliseconds()
	is.Status = ipc.StageOK
	switch {
	case errors.Is(err, errSkipped):
		is.Status, err = ipc.StageSkipped, nil
	case err != nil:
		is.Status, is.Notes = ipc.StageFailed, err.Error()
	}
	s.events.Stages.WithLabelValues(string(name), string(is.Status)).Observe(events.Since(began))
	s.ran = append(s.ran, is)
	s.tell(is)
	return err
}

// tell sends the present state of a stage to the client and to the live feed.
func (s *stageRunner) tell(is ipc.Stage) {
	if s.notify != nil {
		s.notify(is)
	}
	s.events.Publish(s.app, "stage", is)
}
