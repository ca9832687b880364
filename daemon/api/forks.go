package api

import (
	"net/http"

	"mulligan/ipc"
)

func (svc *Service) getForks(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	list, err := svc.forks.Forks(r.Context(), who, r.PathValue("app"))
	return answer(w, http.StatusOK, list, err)
}

func (svc *Service) postForks(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.ForkRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	list, err := svc.forks.Fork(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusCreated, list, err)
}

func (svc *Service) postKeep(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.KeepRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	res, err := svc.forks.KeepFork(r.Context(), who, r.PathValue("app"), r.PathValue("fork"), req)
	return answer(w, http.StatusOK, res, err)
}

func (svc *Service) deleteFork(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	if err := svc.forks.DropFork(r.Context(), who, r.PathValue("app"), r.PathValue("fork")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (svc *Service) postCompare(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.CompareRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	res, err := svc.forks.Compare(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusOK, res, err)
}

func (svc *Service) postEnter(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	conn, end, err := svc.forks.Enter(who, r.PathValue("app"), r.PathValue("fork"))
	if err != nil {
		return err
	}
	defer end()
	defer conn.Close() // the client has a duplicate
	return ipc.PassConn(w, r, conn)
}

func (svc *Service) postBisect(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.BisectRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	res, err := svc.forks.Bisect(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusOK, res, err)
}
