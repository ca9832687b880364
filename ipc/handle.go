package ipc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"

	"mulligan/errs"
)

// MaxBody is the default limit of a request's body in bytes.
const MaxBody = 1 << 20

// OpServe is the operation of errors that concern a request before its handler is called. One of kind errs.NotFound says that the API has no such path
// or method. Clients know it by that, also those that are newer than the daemon.
const OpServe = "serve"

const (
	opRead = "read the request"
	// unknownField is how the JSON decoder's error begins, without its "json: ", if the object has a field that this version of mulligan does not know.
	unknownField = "unknown field "
)

// Handle returns a handler that calls f. It answers with the error that f returns, so f may return an error only before it has
// written anything. Handle also logs bugs of mulligan, including panics; nothing else logs them.
func Handle(f func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stack, err := guard(f, w, r)
		if err == nil {
			return
		}
		if errs.KindOf(err) == errs.Internal {
			slog.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "err", err, "stack", stack)
		}
		WriteError(w, err)
	})
}

// guard calls f and turns a panic into an error with its stack.
func guard(f func(http.ResponseWriter, *http.Request) error, w http.ResponseWriter, r *http.Request) (stack string, err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			stack = string(debug.Stack())
			err = errs.New(errs.Internal, r.Method+" "+r.URL.Path, "panic: %v", p).WithHint("see the daemon's log")
		}
	}()
	return "", f(w, r)
}

// WriteError answers with the status and the JSON form of err.
func WriteError(w http.ResponseWriter, err error) {
	b := Body(err)
	WriteJSON(w, HTTPStatus(b.Kind), errorEnvelope{&b})
}

// WriteJSON answers with v and the status. If v cannot be encoded, the answer is an internal error. Errors of writing are
// ignored: the client has gone.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		body := Body(errs.Wrap(errs.Internal, "write the answer", err))
		status = HTTPStatus(body.Kind)
		b, _ = json.Marshal(errorEnvelope{&body}) // strings are always encoded
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// ReadJSON reads the request's body, one JSON object of at most limit bytes (0: MaxBody), into the struct that into points to.
// An empty body leaves the struct unchanged. Any other body, also one with an unknown field, is an error of kind errs.Invalid
// that says what is wrong and where.
func ReadJSON(r *http.Request, into any, limit int64) error {
	if limit == 0 {
		limit = MaxBody
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return errs.Wrap(errs.Invalid, opRead, err)
	}
	if int64(len(body)) > limit {
		// Otherwise a client that is still writing would see a broken connection instead of the answer.
		_, _ = io.CopyN(io.Discard, r.Body, 8*limit)
		return errs.New(errs.Invalid, opRead, "the body is larger than %d bytes", limit)
	}
	if len(strings.TrimSpace(string(body))) == 0 {
		return nil
	}
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return malformed(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errs.New(errs.Invalid, opRead, "the body goes on after its JSON object, at byte %d", dec.InputOffset())
	}
	return nil
}

// malformed returns the decoder's error in the words of the API.
func malformed(err error) error {
	var typ *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &typ) && typ.Field == "":
		return errs.New(errs.Invalid, opRead, "the body is a JSON %s, not an object", typ.Value)
	case errors.As(err, &typ):
		return errs.New(errs.Invalid, opRead, "%s: the value is a JSON %s, and must be %s", typ.Field, typ.Value, jsonName(typ))
	case errors.As(err, &syntax):
		return errs.New(errs.Invalid, opRead, "the body is not JSON: %v, at byte %d", syntax, syntax.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errs.New(errs.Invalid, opRead, "the body is not JSON: it ends too early")
	}
	return errs.New(errs.Invalid, opRead, "%s", strings.TrimPrefix(err.Error(), "json: "))
}

// jsonName returns the JSON type that the field of a type error needs.
func jsonName(e *json.UnmarshalTypeError) string {
	switch k := e.Type.Kind().String(); {
	case strings.HasPrefix(k, "int"), strings.HasPrefix(k, "uint"):
		return "a whole number"
	case strings.HasPrefix(k, "float"):
		return "a number"
	case k == "bool":
		return "true or false"
	case k == "slice", k == "array":
		return "a list"
	case k == "struct", k == "map":
		return "an object"
	default:
		return fmt.Sprintf("a %s", k)
	}
}
