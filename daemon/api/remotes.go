package api

import (
	"net/http"

	"mulligan/daemon/offsite"
	"mulligan/ipc"
)

// remoteHandlers are the operations on remotes.
type remoteHandlers struct{ *offsite.Service }

func (h remoteHandlers) getRemotes(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	list, err := h.Remotes(r.Context(), who, r.PathValue("app"))
	return answer(w, http.StatusOK, list, err)
}

func (h remoteHandlers) getRemote(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	v, err := h.Remote(r.Context(), who, r.PathValue("app"), r.PathValue("remote"))
	return answer(w, http.StatusOK, v, err)
}

func (h remoteHandlers) postRemote(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.RemoteRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	v, err := h.AddRemote(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusCreated, v, err)
}

func (h remoteHandlers) postCheck(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	full, err := flag(r, "full")
	if err != nil {
		return err
	}
	res, err := h.CheckRemote(r.Context(), who, r.PathValue("app"), r.PathValue("remote"), full)
	return answer(w, http.StatusOK, res, err)
}

func (h remoteHandlers) postRemotePrune(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	dry, err := flag(r, "dry_run")
	if err != nil {
		return err
	}
	res, err := h.PruneRemote(r.Context(), who, r.PathValue("app"), r.PathValue("remote"), dry)
	return answer(w, http.StatusOK, res, err)
}

func (h remoteHandlers) deleteRemote(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	if err := h.RemoveRemote(r.Context(), who, r.PathValue("app"), r.PathValue("remote")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h remoteHandlers) postPush(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.PushRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	list, err := h.Push(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusOK, list, err)
}

func (h remoteHandlers) postFetch(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.FetchRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	cp, err := h.Fetch(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusOK, cp, err)
}

func (h remoteHandlers) postClone(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.CloneRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	res, err := h.Clone(r.Context(), who, req)
	return answerReceipt(w, http.StatusCreated, res, res.Error, err)
}
