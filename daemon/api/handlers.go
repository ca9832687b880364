package api

import (
	"encoding/json"
	"net/http"
	"strconv"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

func cpOf(r *http.Request) ipc.CheckpointID { return ipc.CheckpointID(r.PathValue("cp")) }

// flag reads a query parameter that is 1, 0 or absent.
func flag(r *http.Request, name string) (bool, error) {
	switch v := r.URL.Query().Get(name); v {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	default:
		return false, errs.New(errs.Invalid, "read request", "%s=%.32q is neither 1 nor 0", name, v)
	}
}

// number reads a query parameter that is a count. It returns 0 if the parameter is absent.
func number(r *http.Request, name string) (int, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		return 0, errs.New(errs.Invalid, "read request", "%s=%.32q is not a whole number of 0 or more", name, v)
	}
	return n, nil
}

// answer writes v with the status, or returns err.
func answer(w http.ResponseWriter, status int, v any, err error) error {
	if err != nil {
		return err
	}
	ipc.WriteJSON(w, status, v)
	return nil
}

func (svc *Service) getHealth(w http.ResponseWriter, r *http.Request, _ ipc.Caller) error {
	if err := svc.Alive(r.Context()); err != nil {
		return err
	}
	ipc.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	return nil
}

func (svc *Service) getStatus(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	ipc.WriteJSON(w, http.StatusOK, svc.Status(who))
	return nil
}

func (svc *Service) getApps(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	ipc.WriteJSON(w, http.StatusOK, ipc.AppList{Apps: svc.registry.Apps(r.Context(), who)})
	return nil
}

func (svc *Service) postApp(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var spec ipc.App
	if err := ipc.ReadJSON(r, &spec, 0); err != nil {
		return err
	}
	a, err := svc.registry.AddApp(r.Context(), who, spec)
	return answer(w, http.StatusCreated, a, err)
}

func (svc *Service) getApp(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	gaps, err := flag(r, "gaps")
	if err != nil {
		return err
	}
	get := svc.registry.App
	if gaps {
		get = svc.registry.AppWithGaps
	}
	a, err := get(r.Context(), who, r.PathValue("app"))
	return answer(w, http.StatusOK, a, err)
}

func (svc *Service) patchApp(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var ch ipc.AppChange
	if err := ipc.ReadJSON(r, &ch, 0); err != nil {
		return err
	}
	a, err := svc.registry.SetApp(r.Context(), who, r.PathValue("app"), ch)
	svc.remotes.WakePushes() // more of its checkpoints may go to remotes now
	return answer(w, http.StatusOK, a, err)
}

func (svc *Service) deleteApp(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	purge, err := flag(r, "purge")
	if err != nil {
		return err
	}
	if err := svc.registry.RemoveApp(r.Context(), who, r.PathValue("app"), purge); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (svc *Service) getCheckpoints(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	limit, err := number(r, "limit")
	if err != nil {
		return err
	}
	list, err := svc.checkpoints.Checkpoints(r.Context(), who, r.PathValue("app"), ipc.CheckpointQuery{
		Trigger: ipc.Trigger(r.URL.Query().Get("trigger")), Limit: limit,
		Before: ipc.CheckpointID(r.URL.Query().Get("before")), Conversation: r.URL.Query().Get("conversation"),
	})
	if err == nil {
		err = svc.remotes.LocateAll(r.Context(), who, r.PathValue("app"), &list)
	}
	return answer(w, http.StatusOK, list, err)
}

func (svc *Service) postCheckpoint(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.CreateRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	cp, err := svc.checkpoints.Create(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusCreated, cp, err)
}

func (svc *Service) postPrune(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	dry, err := flag(r, "dry_run")
	if err != nil {
		return err
	}
	res, err := svc.checkpoints.Prune(r.Context(), who, r.PathValue("app"), dry)
	return answer(w, http.StatusOK, res, err)
}

func (svc *Service) getCheckpoint(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	cp, err := svc.checkpoints.Checkpoint(r.Context(), who, r.PathValue("app"), cpOf(r))
	located := []ipc.Checkpoint{cp}
	svc.remotes.Locate(located...)
	return answer(w, http.StatusOK, located[0], err)
}

func (svc *Service) deleteCheckpoint(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	if err := svc.checkpoints.Delete(r.Context(), who, r.PathValue("app"), cpOf(r)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (svc *Service) postPin(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	cp, err := svc.checkpoints.Pin(r.Context(), who, r.PathValue("app"), cpOf(r), true)
	svc.remotes.WakePushes() // pinned checkpoints may go to remotes
	return answer(w, http.StatusOK, cp, err)
}

func (svc *Service) postUnpin(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	cp, err := svc.checkpoints.Pin(r.Context(), who, r.PathValue("app"), cpOf(r), false)
	return answer(w, http.StatusOK, cp, err)
}

func (svc *Service) postVerify(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	quick, err := flag(r, "quick")
	if err != nil {
		return err
	}
	depth := snap.Full
	if quick {
		depth = snap.Quick
	}
	res, err := svc.checkpoints.Verify(r.Context(), who, r.PathValue("app"), cpOf(r), depth)
	return answer(w, http.StatusOK, res, err)
}

func (svc *Service) getDiff(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	q := ipc.DiffQuery{Against: r.URL.Query().Get("against"), Paths: r.URL.Query()["path"]}
	var err error
	if q.Patch, err = flag(r, "patch"); err != nil {
		return err
	}
	if q.Limit, err = number(r, "limit"); err != nil {
		return err
	}
	if q.Offset, err = number(r, "offset"); err != nil {
		return err
	}
	res, err := svc.checkpoints.Diff(r.Context(), who, r.PathValue("app"), cpOf(r), q)
	return answer(w, http.StatusOK, res, err)
}

func (svc *Service) postRollback(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.RollbackRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	ref, id := r.PathValue("app"), cpOf(r)
	if ipc.WantsSSE(r) {
		return svc.streamRollback(w, r, who, ref, id, req)
	}
	res, err := svc.rollbacks.Rollback(r.Context(), who, ref, id, req, nil)
	return answerReceipt(w, http.StatusOK, res, res.Error, err)
}

// answerReceipt writes a result with the status, or returns err. It also writes the result of what began and failed, which has the failure.
func answerReceipt(w http.ResponseWriter, status int, res any, failure *ipc.ErrorBody, err error) error {
	if failure != nil {
		ipc.WriteJSON(w, ipc.HTTPStatus(failure.Kind), res)
		return nil
	}
	return answer(w, status, res, err)
}

// streamRollback answers with an event for each stage and then the result. If the client disconnects, the rollback continues.
func (svc *Service) streamRollback(w http.ResponseWriter, r *http.Request, who ipc.Caller, ref string, id ipc.CheckpointID, req ipc.RollbackRequest) error {
	if id == ipc.Undo || id == ipc.Redo {
		if _, err := svc.apps.Find(who, ref); err != nil {
			return err
		}
	} else if _, _, err := svc.checkpoints.FindCheckpoint(r.Context(), who, ref, id); err != nil {
		return err // a plain answer is still possible here
	}
	sse, err := ipc.NewSSE(w, r)
	if err != nil {
		return err
	}
	defer sse.Close()
	res, err := svc.rollbacks.Rollback(r.Context(), who, ref, id, req, func(s ipc.Stage) {
		_ = sse.Send(ipc.EventStage, s) // errors are ignored: the client may have disconnected
	})
	if err != nil && res.Error == nil {
		_ = sse.Fail(err)
		return nil
	}
	_ = sse.Send(ipc.EventResult, res)
	return nil
}

func (svc *Service) getTurns(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	limit, err := number(r, "limit")
	if err != nil {
		return err
	}
	turns, err := svc.turns.Turns(r.Context(), who, r.PathValue("app"), r.URL.Query().Get("conversation"), limit)
	return answer(w, http.StatusOK, ipc.TurnList{Turns: turns}, err)
}

func (svc *Service) postTurn(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.BeginTurn
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	t, err := svc.turns.BeginTurn(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusCreated, t, err)
}

func (svc *Service) postTurnEnd(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	t, err := svc.turns.EndTurn(r.Context(), who, r.PathValue("app"), ipc.TurnID(r.PathValue("turn")))
	return answer(w, http.StatusOK, t, err)
}

func (svc *Service) postCall(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.BeginCall
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	c, err := svc.turns.BeginCall(r.Context(), who, r.PathValue("app"), ipc.TurnID(r.PathValue("turn")), req)
	return answer(w, http.StatusCreated, c, err)
}

func (svc *Service) postCallEnd(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	c, err := svc.turns.EndCall(r.Context(), who, r.PathValue("app"), ipc.TurnID(r.PathValue("turn")), ipc.CallID(r.PathValue("call")))
	return answer(w, http.StatusOK, c, err)
}

func (svc *Service) putConversationCheckpoint(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.SetCheckpoint
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	c, err := svc.turns.SetConversationCheckpoint(r.Context(), who, r.PathValue("app"), r.PathValue("conversation"), req.MessageID)
	return answer(w, http.StatusOK, c, err)
}

// postRevert reverts a conversation, or a turn or call that is identified by its id alone.
func (svc *Service) postRevert(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.RevertRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	if c := r.PathValue("conversation"); c != "" {
		req.ConversationID = c
	}
	res, err := svc.rollbacks.Revert(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusOK, res, err)
}

func (svc *Service) getAudit(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	limit, err := number(r, "limit")
	if err != nil {
		return err
	}
	verify, err := flag(r, "verify")
	if err != nil {
		return err
	}
	list, err := svc.checkpoints.Audit(r.Context(), who, r.PathValue("app"), limit, verify)
	return answer(w, http.StatusOK, list, err)
}

func (svc *Service) getEvents(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	a, err := svc.apps.Find(who, r.PathValue("app"))
	if err != nil {
		return err
	}
	events, end := svc.events.Subscribe(a.Rec().ID)
	defer end()
	sse, err := ipc.NewSSE(w, r)
	if err != nil {
		return err
	}
	defer sse.Close()
	for {
		select {
		case <-r.Context().Done():
			return nil
		case ev, ok := <-events:
			if !ok {
				return nil
			}
			if err := sse.Send(ev.Name, json.RawMessage(ev.Data)); err != nil {
				return nil // the client disconnected
			}
		}
	}
}
