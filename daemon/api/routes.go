package api

import (
	"net/http"
	"strings"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/events"
	"mulligan/daemon/gate"
	"mulligan/errs"
	"mulligan/ipc"
)

// route is an operation of the API: its path, the right that it needs, its handler, and its description in the OpenAPI
// document.
type route struct {
	pattern string    // method and path, as of http.ServeMux
	about   string    // one line
	need    ipc.Scope // the scope that a token needs; "" means that no credentials are needed
	local   bool      // only for processes on the socket
	query   string    // names of its query parameters; see openapi.go
	body    any       // a value of the request's type; nil means that there is no body
	status  int       // status of the answer; 0 means 200
	answer  any       // a value of the answer's type; nil means that the answer is empty
	text    bool      // the answer is plain text
	events  string    // the events that it streams, on request or always
	serve   func(http.ResponseWriter, *http.Request, ipc.Caller) error
}

const (
	appPath         = "/api/apps/{app}"
	checkpointsPath = appPath + "/checkpoints"
	checkpointPath  = checkpointsPath + "/{cp}"
	turnsPath       = appPath + "/turns"
	forksPath       = appPath + "/forks"
	remotesPath     = appPath + "/remotes"
)

const eventsOfLong = "with Accept: text/event-stream, where it takes long: `progress` events, then the answer as `answer`, or `error`"

// routes returns all operations of the API.
func (svc *Service) routes() []route {
	const read, write, manage = ipc.ScopeRead, ipc.ScopeWrite, ipc.ScopeManage
	return []route{
		{pattern: "GET /healthz", about: "Whether the daemon can do its work", answer: map[string]string{}, serve: svc.getHealth},
		{pattern: "GET /openapi.json", about: "This document", answer: map[string]any{}, serve: svc.getOpenAPI},
		{pattern: "GET /metrics", about: "Counts and durations over all apps, for Prometheus", need: ipc.ScopeMetrics, text: true, serve: svc.getMetrics},
		{pattern: "GET /api/status", about: "The daemon's own status", need: read, answer: ipc.Status{}, serve: svc.getStatus},
		{pattern: "GET /api/session", about: "Who the page belongs to", need: read, answer: ipc.Session{}, serve: svc.getSession},
		{pattern: "DELETE /api/session", about: "End the page's session", need: read, status: http.StatusNoContent, serve: svc.deleteSession},
		{pattern: "POST /api/ui", about: "A link that opens the page once", local: true, body: ipc.UIRequest{}, status: http.StatusCreated, answer: ipc.UILink{}, serve: svc.postUI},

		{pattern: "GET /api/tokens", about: "The caller's tokens", local: true, answer: ipc.TokenList{}, serve: svc.getTokens},
		{pattern: "POST /api/tokens", about: "Make a token", local: true, body: ipc.TokenRequest{}, status: http.StatusCreated, answer: ipc.NewToken{}, serve: svc.postToken},
		{pattern: "DELETE /api/tokens/{token}", about: "Revoke a token", local: true, status: http.StatusNoContent, serve: svc.deleteToken},

		{pattern: "GET /api/apps", about: "The caller's apps", need: read, answer: ipc.AppList{}, serve: svc.getApps},
		{pattern: "POST /api/apps", about: "Register an app", need: manage, body: ipc.App{}, status: http.StatusCreated, answer: ipc.App{}, serve: long(svc.postApp), events: eventsOfLong},
		{pattern: "GET " + appPath, about: "One app", need: read, query: "gaps", answer: ipc.App{}, serve: svc.getApp},
		{pattern: "PATCH " + appPath, about: "Change an app", need: manage, body: ipc.AppChange{}, answer: ipc.App{}, serve: long(svc.patchApp), events: eventsOfLong},
		{pattern: "DELETE " + appPath, about: "Unregister an app", need: manage, query: "purge", status: http.StatusNoContent, serve: long(svc.deleteApp), events: eventsOfLong},

		{pattern: "GET " + checkpointsPath, about: "Checkpoints, newest first", need: read, query: "trigger limit before conversation", answer: ipc.CheckpointList{}, serve: svc.getCheckpoints},
		{pattern: "POST " + checkpointsPath, about: "Make a checkpoint", need: write, body: ipc.CreateRequest{}, status: http.StatusCreated, answer: ipc.Checkpoint{}, serve: long(svc.postCheckpoint), events: eventsOfLong},
		{pattern: "POST " + checkpointsPath + "/prune", about: "Apply the retention rules now", need: write, query: "dry_run", answer: ipc.PruneResult{}, serve: long(svc.postPrune), events: eventsOfLong},
		{pattern: "GET " + checkpointPath, about: "One checkpoint", need: read, answer: ipc.Checkpoint{}, serve: svc.getCheckpoint},
		{pattern: "DELETE " + checkpointPath, about: "Delete a checkpoint", need: write, status: http.StatusNoContent, serve: long(svc.deleteCheckpoint), events: eventsOfLong},
		{pattern: "POST " + checkpointPath + "/pin", about: "Keep a checkpoint for good", need: write, answer: ipc.Checkpoint{}, serve: svc.postPin},
		{pattern: "POST " + checkpointPath + "/unpin", about: "Keep it no longer than others", need: write, answer: ipc.Checkpoint{}, serve: svc.postUnpin},
		{pattern: "POST " + checkpointPath + "/verify", about: "Check what is stored of a checkpoint", need: read, answer: ipc.VerifyResult{}, serve: long(svc.postVerify), events: eventsOfLong},
		{pattern: "GET " + checkpointPath + "/diff", about: "What differs from now, or from another checkpoint", need: read, query: "against path patch limit offset", answer: ipc.Diff{}, serve: long(svc.getDiff), events: eventsOfLong},
		{pattern: "POST " + checkpointPath + "/rollback", about: "Take the app to a checkpoint, or where `undo` or `redo` in place of its id leads", need: write, body: ipc.RollbackRequest{}, answer: ipc.RollbackResult{},
			events: "with Accept: text/event-stream, a `stage` event as each stage starts and ends, then `result`, or `error` where nothing was begun", serve: svc.postRollback},

		{pattern: "GET " + turnsPath, about: "Turns, newest first", need: read, query: "limit conversation", answer: ipc.TurnList{}, serve: svc.getTurns},
		{pattern: "POST " + turnsPath, about: "A turn begins", need: write, body: ipc.BeginTurn{}, status: http.StatusCreated, answer: ipc.Turn{}, serve: svc.postTurn},
		{pattern: "POST " + turnsPath + "/{turn}/end", about: "A turn ends", need: write, answer: ipc.Turn{}, serve: svc.postTurnEnd},
		{pattern: "POST " + turnsPath + "/{turn}/calls", about: "A tool call begins", need: write, body: ipc.BeginCall{}, status: http.StatusCreated, answer: ipc.Call{}, serve: svc.postCall},
		{pattern: "POST " + turnsPath + "/{turn}/calls/{call}/end", about: "A tool call ends", need: write, answer: ipc.Call{}, serve: svc.postCallEnd},
		{pattern: "POST " + appPath + "/calls/{call}/end", about: "The newest call of that id ends", need: write, answer: ipc.Call{}, serve: svc.postCallEnd},

		{pattern: "PUT " + appPath + "/conversations/{conversation}/checkpoint", about: "Move a conversation's checkpoint", need: write, body: ipc.SetCheckpoint{},
			answer: ipc.ConversationCheckpoint{}, serve: svc.putConversationCheckpoint},
		{pattern: "POST " + appPath + "/conversations/{conversation}/revert", about: "Undo what a conversation's messages, or one of its calls, wrote to files", need: write,
			body: ipc.RevertRequest{}, answer: ipc.RevertResult{}, serve: long(svc.postRevert), events: eventsOfLong},
		{pattern: "POST " + appPath + "/revert", about: "Undo what a turn or a call wrote to files", need: write, body: ipc.RevertRequest{}, answer: ipc.RevertResult{}, serve: long(svc.postRevert), events: eventsOfLong},

		{pattern: "GET " + forksPath, about: "Forks of the app", need: read, answer: ipc.ForkList{}, serve: svc.forks.getForks},
		{pattern: "POST " + forksPath, about: "Make forks of the app", need: write, body: ipc.ForkRequest{}, status: http.StatusCreated, answer: ipc.ForkList{}, serve: long(svc.forks.postForks), events: eventsOfLong},
		{pattern: "POST " + forksPath + "/{fork}/keep", about: "Take the app to the present state of a fork, and drop the fork", need: write, body: ipc.KeepRequest{},
			answer: ipc.RollbackResult{}, serve: long(svc.forks.postKeep), events: eventsOfLong},
		{pattern: "POST " + forksPath + "/{fork}/enter", about: "A connection, by its descriptor, to a process that runs commands inside of a fork", need: write, local: true,
			status: http.StatusSwitchingProtocols, serve: svc.forks.postEnter},
		{pattern: "POST " + forksPath + "/compare", about: "What forks changed since their origin, and how they are", need: write, body: ipc.CompareRequest{},
			answer: ipc.Comparison{}, serve: long(svc.forks.postCompare), events: eventsOfLong},
		{pattern: "POST " + appPath + "/bisect", about: "Find the first checkpoint at which a command fails, in forks", need: write, body: ipc.BisectRequest{},
			answer: ipc.BisectResult{}, serve: long(svc.forks.postBisect), events: eventsOfLong},
		{pattern: "DELETE " + forksPath + "/{fork}", about: "Drop a fork and all that was made for it", need: write, status: http.StatusNoContent, serve: long(svc.forks.deleteFork), events: eventsOfLong},

		{pattern: "GET " + remotesPath, about: "Remotes of the app, and how far they are behind", need: read, answer: ipc.RemoteList{}, serve: svc.remotes.getRemotes},
		{pattern: "POST " + remotesPath, about: "Add a remote to the app, after a check of what its key can do there", need: manage, local: true, body: ipc.RemoteRequest{}, status: http.StatusCreated,
			answer: ipc.Remote{}, serve: long(svc.remotes.postRemote), events: eventsOfLong},
		{pattern: "GET " + remotesPath + "/{remote}", about: "One remote", need: read, answer: ipc.Remote{}, serve: svc.remotes.getRemote},
		{pattern: "POST " + remotesPath + "/{remote}/check", about: "Check that what this host sent is there, and send again what is not", need: write, query: "full", answer: ipc.RemoteCheck{}, serve: long(svc.remotes.postCheck), events: eventsOfLong},
		{pattern: "POST " + remotesPath + "/{remote}/prune", about: "Remove from a remote what the app's settings no longer keep there", need: manage, query: "dry_run", answer: ipc.RemotePrune{}, serve: long(svc.remotes.postRemotePrune), events: eventsOfLong},
		{pattern: "DELETE " + remotesPath + "/{remote}", about: "Forget a remote; what was sent stays there", need: manage, status: http.StatusNoContent, serve: long(svc.remotes.deleteRemote), events: eventsOfLong},
		{pattern: "POST " + appPath + "/push", about: "Send checkpoints to the app's remotes", need: write, body: ipc.PushRequest{}, answer: ipc.RemoteList{}, serve: long(svc.remotes.postPush), events: eventsOfLong},
		{pattern: "POST " + appPath + "/fetch", about: "Bring a checkpoint from a remote to this host", need: write, local: true, body: ipc.FetchRequest{}, answer: ipc.Checkpoint{}, serve: long(svc.remotes.postFetch), events: eventsOfLong},
		{pattern: "POST /api/clone", about: "Make an app from a remote", need: manage, local: true, body: ipc.CloneRequest{}, status: http.StatusCreated, answer: ipc.CloneResult{},
			serve: long(svc.remotes.postClone), events: eventsOfLong},

		{pattern: "GET " + appPath + "/audit", about: "What was done to the app, newest first", need: read, query: "limit verify", answer: ipc.AuditList{}, serve: svc.getAudit},
		{pattern: "GET " + appPath + "/events", about: "What happens to the app, live", need: read, events: "`checkpoint` (made, pinned, unpinned), `deleted`, `stage`, `rollback`, `revert` and `turn` events", serve: svc.getEvents},
	}
}

// Handler returns the handler of the API. ipc.CallerFrom identifies the caller.
func (svc *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range svc.routes() {
		mux.Handle(rt.pattern, svc.handle(rt))
	}
	mux.Handle("/", svc.page(svc.handle(route{need: ipc.ScopeRead, serve: notFound})))
	return mux
}

// page serves the files of the page without authentication, because they contain no secrets. It passes all other requests to
// next.
func (svc *Service) page(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if svc.opt.Page == nil || !reads || strings.HasPrefix(r.URL.Path, "/api/") {
			next.ServeHTTP(w, r)
			return
		}
		svc.opt.Page.ServeHTTP(w, r)
	})
}

// handle serves a route and records the duration.
func (svc *Service) handle(rt route) http.Handler {
	return ipc.Handle(func(w http.ResponseWriter, r *http.Request) error {
		began := time.Now()
		err := svc.answer(rt, w, r)
		if rt.pattern != "" {
			svc.events.Requests.WithLabelValues(rt.pattern, events.ResultOf(err)).Observe(events.Since(began))
		}
		return err
	})
}

// answer serves a route to callers that are authenticated, have the right, and are within their limits.
func (svc *Service) answer(rt route, w http.ResponseWriter, r *http.Request) error {
	who, known := ipc.CallerFrom(r.Context())
	if rt.need == "" && !rt.local {
		return rt.serve(w, r, who)
	}
	if !known {
		w.Header().Set("WWW-Authenticate", `Bearer realm="mulligan"`)
		return errs.New(errs.Unauthenticated, "serve", "the caller is not known").
			WithHint("use the daemon's unix socket, or send Authorization: Bearer with a token of `mulligan token add`")
	}
	if err := svc.owners.CheckCaller(who); err != nil {
		return err
	}
	if rt.local && !who.Local() {
		return errs.New(errs.Denied, "serve", "%s is for the unix socket only", r.URL.Path).WithHint("use the mulligan command on the host")
	}
	if rt.need != "" && !who.May(rt.need) {
		return errs.New(errs.Denied, "serve", "this token lacks the scope %q", rt.need).
			WithHint("make one that has it: `mulligan token add --scope %s`", rt.need)
	}
	done, err := svc.callers.Admit(who, svc.owners.LimitsOf(who), svc.opt.Now())
	if err != nil {
		w.Header().Set("Retry-After", "1")
		return err
	}
	defer done()
	return rt.serve(w, r, who)
}

func notFound(_ http.ResponseWriter, r *http.Request, _ ipc.Caller) error {
	return errs.New(errs.NotFound, ipc.OpServe, "no %s %.128q in the API", r.Method, r.URL.Path).WithHint("GET /openapi.json describes it")
}

func (svc *Service) getSession(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	s, ok := gate.SessionOf(r.Context())
	if !ok {
		return errs.New(errs.NotFound, "show session", "the request belongs to no session of the page").WithHint("open the page with: `mulligan ui`")
	}
	s.User = accounts.UserName(who.UID)
	ipc.WriteJSON(w, http.StatusOK, s)
	return nil
}

func (svc *Service) deleteSession(w http.ResponseWriter, r *http.Request, _ ipc.Caller) error {
	if err := svc.gate.End(r.Context()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (svc *Service) postUI(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.UIRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	var slug string
	if req.App != "" {
		a, err := svc.apps.Find(who, req.App)
		if err != nil {
			return err
		}
		slug = a.Rec().Slug
	}
	var link ipc.UILink
	var err error
	if who.Name, err = svc.owners.CallerName(who); err == nil {
		link, err = svc.gate.Invite(who, slug)
	}
	return answer(w, http.StatusCreated, link, err)
}

func (svc *Service) getTokens(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	list, err := svc.Tokens(r.Context(), who)
	return answer(w, http.StatusOK, list, err)
}

func (svc *Service) postToken(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	var req ipc.TokenRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	t, err := svc.AddToken(r.Context(), who, req)
	return answer(w, http.StatusCreated, t, err)
}

func (svc *Service) deleteToken(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	if err := svc.RevokeToken(r.Context(), who, ipc.TokenID(r.PathValue("token"))); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
