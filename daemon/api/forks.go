package api

import (
	"net/http"

	"mulligan/ipc"
)

func (d *Service) getForks(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	list, err := d.forks.Forks(r.Context(), who, r.PathValue("app"))
	return answer(w, http.StatusOK, list, err)
}

func (d *Service) postForks(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.ForkRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	list, err := d.forks.Fork(r.Context(), who, r.PathValue("app"), req)
	return answer(w, http.StatusCreated, list, err)
}

func (d *Service) postKeep(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.KeepRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	res, err := d.forks.KeepFork(r.Context(), who, r.PathValue("app"), r.PathValue("fork"), req)
	return answer(w, http.StatusOK, res, err)
}

func (d *Service) deleteFork(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	if err := d.forks.DropFork(r.Context(), who, r.PathValue("app"), r.PathValue("fork")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
