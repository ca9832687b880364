package api

import (
	"net/http"

	"mulligan/daemon/fork"
	"mulligan/ipc"
)

// forkHandlers are the operations on forks.
type forkHandlers struct{ forks *fork.Service }

func (h forkHandlers) getForks(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	list, err := h.forks.Forks(r.Context(), who, r.PathValue("app"))
	return answer(w, http.StatusOK, list, err)
}

func (h forkHandlers) postForks(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.ForkRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	list, err := h.forks.Fork(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusCreated, list, err)
}

func (h forkHandlers) postKeep(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.KeepRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	res, err := h.forks.KeepFork(r.Context(), who, r.PathValue("app"), r.PathValue("fork"), req)
	return answerReceipt(w, http.StatusOK, res, res.Error, err)
}

func (h forkHandlers) deleteFork(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	if err := h.forks.DropFork(r.Context(), who, r.PathValue("app"), r.PathValue("fork")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h forkHandlers) postCompare(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.CompareRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	res, err := h.forks.Compare(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusOK, res, err)
}

func (h forkHandlers) postEnter(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	conn, end, err := h.forks.Enter(r.Context(), who, r.PathValue("app"), r.PathValue("fork"))
	if err != nil {
		return err
	}
	defer end()
	defer conn.Close() // the client has a duplicate
	return ipc.PassConn(w, r, conn)
}

func (h forkHandlers) postBisect(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.BisectRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	res, err := h.forks.Bisect(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusOK, res, err)
}
