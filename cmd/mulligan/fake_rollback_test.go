package main

import (
	"net/http"
	"os"
	"path/filepath"

	"mulligan/errs"
	"mulligan/ipc"
)

func (f *fake) rollback(a *fakeApp, i int, w http.ResponseWriter, r *http.Request) error {
	var req ipc.RollbackRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	target := a.points[i]
	have, err := readFiles(a.Workspace)
	if err != nil {
		return err
	}
	res := ipc.RollbackResult{DryRun: req.DryRun, StayedBehind: req.Without, ChangesReverted: differences(target.files, have)}
	res.ChangesTotal = len(res.ChangesReverted)
	cp := target.Checkpoint
	res.RestoredTo = &cp
	if req.DryRun {
		for _, name := range ipc.Stages {
			res.Stages = append(res.Stages, ipc.Stage{Stage: name, Status: ipc.StageSkipped})
		}
		ipc.WriteJSON(w, http.StatusOK, res)
		return nil
	}
	send := func(string, any) error { return nil }
	if ipc.WantsSSE(r) {
		sse, err := ipc.NewSSE(w, r)
		if err != nil {
			return err
		}
		defer sse.Close()
		send = sse.Send
	}
	if f.fault == "hold" {
		close(f.rolling)
		<-f.release
	}
	if err := f.stages(a, target, req, &res, send); err != nil {
		return err
	}
	result := "ok"
	status := http.StatusOK
	if res.Error != nil {
		result = string(res.Error.Kind)
		status = ipc.HTTPStatus(res.Error.Kind)
	}
	if f.fault != "unrecorded" {
		f.note(a, "rollback", string(target.ID), req.Reason, result, res)
	}
	if ipc.WantsSSE(r) {
		return send(ipc.EventResult, res)
	}
	ipc.WriteJSON(w, status, res)
	return nil
}

// stages runs the six stages of a rollback, and fails at the third if the fault says so.
func (f *fake) stages(a *fakeApp, target fakePoint, req ipc.RollbackRequest, res *ipc.RollbackResult, send func(string, any) error) error {
	safety, err := f.capture(a, ipc.CreateRequest{Trigger: ipc.TriggerPreRollback})
	if err != nil {
		return err
	}
	res.SafetyCheckpoint = &safety
	fails := f.fault == "rollback recovered" || f.fault == "rollback broken"
	for _, name := range ipc.Stages {
		st := ipc.Stage{Stage: name, Status: ipc.StageRunning, TS: f.clock}
		if err := send(ipc.EventStage, st); err != nil {
			return err
		}
		st.Status, st.DurationMS = ipc.StageOK, 1234
		switch {
		case res.Error != nil:
			st.Status = ipc.StageSkipped
		case name == ipc.StageVM && fails:
			st.Status, st.Notes = ipc.StageFailed, "no space left"
			res.Error = &ipc.ErrorBody{Kind: errs.Failed, Op: "rollback", Message: "no space left on /srv", Hint: "make room"}
			res.Recovered = f.fault == "rollback recovered"
		case name == ipc.StageVM:
			err = restore(a.Workspace, target.files, res.ChangesReverted)
		}
		if err != nil {
			return err
		}
		res.Stages = append(res.Stages, st)
		if err := send(ipc.EventStage, st); err != nil {
			return err
		}
	}
	cp := target.Checkpoint
	res.RolledBackTo, res.RestoredTo = &cp, &cp
	if res.Error != nil {
		return nil
	}
	res.RolledBack = true
	if req.VerifyRestore == nil {
		res.Verification = &ipc.Verification{LayerVerification: ipc.LayerVerification{Match: true}}
	}
	if f.fault == "warn" {
		res.Warnings = []string{"the health check\nfailed"}
	}
	return nil
}

func restore(dir string, files map[string][]byte, changes []ipc.Change) error {
	for _, ch := range changes {
		path := filepath.Join(dir, ch.Path)
		var err error
		if ch.Operation == "create" {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, files[ch.Path], 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
