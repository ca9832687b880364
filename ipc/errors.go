package ipc

import (
	"net/http"

	"mulligan/errs"
)

// ErrorBody is the JSON form of an error, inside {"error": …}.
type ErrorBody struct {
	Kind    errs.Kind `json:"kind"`
	Message string    `json:"message"`
	Op      string    `json:"op"`
	Hint    string    `json:"hint"`
}

// errorEnvelope is the body of every answer that reports an error.
type errorEnvelope struct {
	Error *ErrorBody `json:"error"`
}

// Body returns the JSON form of err. An error without a kind is a bug of mulligan and becomes errs.Internal.
func Body(err error) ErrorBody {
	b := ErrorBody{Kind: errs.KindOf(err), Message: err.Error(), Hint: errs.HintOf(err)}
	if e, ok := err.(*errs.Error); ok {
		b.Op, b.Message = e.Op, e.Text()
	}
	return b
}

// Err returns the error that b was made from, without its cause.
func (b ErrorBody) Err() error {
	return &errs.Error{Kind: b.Kind, Message: b.Message, Op: b.Op, Hint: b.Hint}
}

// HTTPStatus returns the status code for an error of kind k.
func HTTPStatus(k errs.Kind) int {
	switch k {
	case errs.Invalid:
		return http.StatusBadRequest
	case errs.Unauthenticated:
		return http.StatusUnauthorized
	case errs.Denied:
		return http.StatusForbidden
	case errs.NotFound:
		return http.StatusNotFound
	case errs.Pinned, errs.Busy, errs.Conflict:
		return http.StatusConflict
	case errs.Expired:
		return http.StatusGone
	case errs.Corrupt:
		return http.StatusUnprocessableEntity
	case errs.Unsupported:
		return http.StatusNotImplemented
	case errs.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
