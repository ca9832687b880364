package daemon_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"mulligan/daemon"
	"mulligan/ipc"
)

// document is what the test reads of the OpenAPI document.
type document struct {
	OpenAPI string
	Paths   map[string]map[string]struct {
		Summary, Description, OperationID string
		Responses                         map[string]struct {
			Content map[string]struct{ Schema json.RawMessage }
		}
	}
	Components struct{ Schemas map[string]json.RawMessage }
}

func (s *served) document() (doc document) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.ask("GET", "/openapi.json", "").body), &doc); err != nil {
		s.t.Fatal(err)
	}
	return doc
}

// schema resolves the schema of a successful answer; nil where it has none.
func (doc document) schema(t *testing.T, method, path, status string) *jsonschema.Resolved {
	t.Helper()
	raw := doc.Paths[path][strings.ToLower(method)].Responses[status].Content["application/json"].Schema
	var ref struct {
		Ref string `json:"$ref"`
	}
	if json.Unmarshal(raw, &ref) == nil && ref.Ref != "" {
		raw = doc.Components.Schemas[strings.TrimPrefix(ref.Ref, "#/components/schemas/")]
	}
	if raw == nil {
		return nil
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return r
}

// TestOpenAPI: every operation in the document is answered by a handler of its
// own, and every handler that the source registers is in the document.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	s := serveTCP(t, daemon.Options{})
	doc := s.document()
	if doc.OpenAPI != "3.1.0" || len(doc.Paths) < 20 {
		t.Fatalf("%s, %d paths", doc.OpenAPI, len(doc.Paths))
	}
	source, err := os.ReadFile("api/routes.go")
	if err != nil {
		t.Fatal(err)
	}
	count, ids := 0, map[string]bool{}
	secret := s.token(root, ipc.TokenRequest{Scopes: ipc.Scopes}).Secret
	for path, methods := range doc.Paths {
		for method, op := range methods {
			count++
			if op.Summary == "" || op.OperationID == "" || ids[op.OperationID] || len(op.Responses) < 2 {
				t.Errorf("%s %s: %+v", method, path, op)
			}
			ids[op.OperationID] = true
			got := s.ask(strings.ToUpper(method), regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "none"), "", bearer(secret)...)
			if strings.Contains(got.body, "in the API") {
				t.Errorf("%s %s has no handler: %s", method, path, got.body)
			}
		}
	}
	if routes := strings.Count(string(source), "{pattern: "); routes != count {
		t.Errorf("%d routes in the source, %d operations in the document", routes, count)
	}
}

// TestAnswersMatch takes an app through the API and holds every answer against
// its schema.
func TestAnswersMatch(t *testing.T) {
	t.Parallel()
	s := serveTCP(t, daemon.Options{})
	doc := s.document()
	ws := workspace(t)
	local := func(method, path, pattern, body, status string) string {
		t.Helper()
		req := httptest.NewRequest(method, path, strings.NewReader(body))
		w := httptest.NewRecorder()
		s.d.Handler().ServeHTTP(w, req.WithContext(ipc.WithCaller(t.Context(), root)))
		got, _ := io.ReadAll(w.Result().Body)
		if w.Result().Status[:3] != status {
			t.Fatalf("%s %s: %s %s", method, path, w.Result().Status, got)
		}
		schema := doc.schema(t, method, pattern, status)
		if schema == nil {
			if len(bytes.TrimSpace(got)) > 0 && w.Result().Header.Get("Content-Type") == "application/json" {
				t.Errorf("%s %s answers with what the document does not tell: %s", method, path, got)
			}
			return string(got)
		}
		var v any
		if err := json.Unmarshal(got, &v); err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		if err := schema.Validate(v); err != nil {
			t.Errorf("%s %s: %v\n%s", method, path, err, got)
		}
		return string(got)
	}
	const app, cps = "/api/apps/{app}", "/api/apps/{app}/checkpoints"
	about, _ := json.Marshal(ipc.App{Slug: "shop", Workspace: ws, Health: &ipc.Health{Command: []string{"true"}}})
	local("POST", "/api/apps", "/api/apps", string(about), "201")
	local("GET", "/api/apps", "/api/apps", "", "200")
	local("GET", "/api/apps/shop", app, "", "200")
	local("PATCH", "/api/apps/shop", app, `{"exclude":["*.x"]}`, "200")
	var cp ipc.Checkpoint
	if err := json.Unmarshal([]byte(local("POST", "/api/apps/shop/checkpoints", cps, `{"notes":"n"}`, "201")), &cp); err != nil {
		t.Fatal(err)
	}
	write(t, ws, "state", "bad")
	one := "/api/apps/shop/checkpoints/" + string(cp.ID)
	local("GET", "/api/apps/shop/checkpoints?limit=5", cps, "", "200")
	local("GET", one, cps+"/{cp}", "", "200")
	local("POST", one+"/pin", cps+"/{cp}/pin", "", "200")
	local("POST", one+"/unpin", cps+"/{cp}/unpin", "", "200")
	local("POST", one+"/verify", cps+"/{cp}/verify", "", "200")
	local("GET", one+"/diff?patch=1", cps+"/{cp}/diff", "", "200")
	local("POST", one+"/rollback", cps+"/{cp}/rollback", `{"dry_run":true}`, "200")
	local("POST", one+"/rollback", cps+"/{cp}/rollback", `{}`, "200")
	local("POST", "/api/apps/shop/checkpoints/prune?dry_run=1", cps+"/prune", "", "200")
	local("POST", "/api/apps/shop/turns", app+"/turns", `{"turn_id":"t1"}`, "201")
	local("POST", "/api/apps/shop/turns/t1/calls", app+"/turns/{turn}/calls", `{"call_id":"c1","tool":"Bash"}`, "201")
	local("POST", "/api/apps/shop/calls/c1/end", app+"/calls/{call}/end", "", "200")
	local("POST", "/api/apps/shop/turns/t1/end", app+"/turns/{turn}/end", "", "200")
	local("GET", "/api/apps/shop/turns", app+"/turns", "", "200")
	local("GET", "/api/apps/shop/audit?verify=1", app+"/audit", "", "200")
	local("GET", "/api/status", "/api/status", "", "200")
	local("GET", "/healthz", "/healthz", "", "200")
	var tok ipc.NewToken
	if err := json.Unmarshal([]byte(local("POST", "/api/tokens", "/api/tokens", `{"name":"x"}`, "201")), &tok); err != nil {
		t.Fatal(err)
	}
	local("GET", "/api/tokens", "/api/tokens", "", "200")
	local("DELETE", "/api/tokens/"+string(tok.ID), "/api/tokens/{token}", "", "204")
	local("POST", "/api/ui", "/api/ui", "", "201")
	metrics := local("GET", "/metrics", "/metrics", "", "200")
	for _, want := range []string{
		`mulligan_apps{state="idle"} 1`, "mulligan_checkpoints 2", `mulligan_operations_total{action="rollback",result="ok"} 1`,
		`mulligan_rollback_stage_seconds_count{stage="vm-revert",status="ok"} 1`, `mulligan_capture_seconds_count{layer="files",result="ok"}`,
		`mulligan_restore_seconds_count{layer="files",result="ok"} 1`,
		`mulligan_request_seconds_count{result="ok",route="GET /api/status"} 1`, "mulligan_store_bytes ", "mulligan_operations_pending 0",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	for _, name := range regexp.MustCompile(`mulligan_\w+`).FindAllString(read(t, "../docs", "alerts.yml"), -1) {
		if !strings.Contains(metrics, name) {
			t.Errorf("the example alerts ask for %s, which is not there", name)
		}
	}
	local("DELETE", one, cps+"/{cp}", "", "204")
	local("DELETE", "/api/apps/shop?purge=1", app, "", "204")
}

// FuzzAPI sends junk to every endpoint: each is answered, in the API's words,
// and none by a fault of mulligan's own.
func FuzzAPI(f *testing.F) {
	d, err := daemon.Open(f.Context(), daemon.Options{StateDir: f.TempDir()})
	if err != nil {
		f.Fatal(err)
	}
	ws := f.TempDir()
	if _, err := d.AddApp(f.Context(), root, ipc.App{Slug: "shop", Workspace: ws}); err != nil {
		f.Fatal(err)
	}
	h := d.Handler()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
	var doc document
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		f.Fatal(err)
	}
	type endpoint struct{ method, path string }
	var all []endpoint
	for path, methods := range doc.Paths {
		for method := range methods {
			if !strings.HasSuffix(path, "/events") && !(method == "delete" && path == "/api/apps/{app}") && path != "/api/ui" {
				all = append(all, endpoint{strings.ToUpper(method), path})
			}
		}
	}
	for i := range all {
		for _, body := range []string{"", "{", "[]", `{"notes":1}`, `{"scope":["../../etc"],"slug":"x","workspace":"/\u0000"}`, `{"a":{"a":{}}}`, "\xff\xfe"} {
			f.Add(i, "../..", "limit=-1&patch=x&path=%00", body)
		}
		f.Add(i, "cp-\x00\n", "before=%ff&against=..", `{"turn_id":"\n","call_id":"x"}`)
	}
	f.Fuzz(func(t *testing.T, which int, name, query, body string) {
		e := all[((which%len(all))+len(all))%len(all)]
		req, err := http.NewRequest(e.method, "http://x/", strings.NewReader(body))
		if err != nil {
			t.Skip()
		}
		path := strings.Replace(e.path, "{app}", "shop", 1)
		req.URL.Path = regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, strings.ReplaceAll(name, "$", ""))
		req.URL.RawQuery = query
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req.WithContext(ipc.WithCaller(t.Context(), root)))
		var refusal struct{ Error ipc.ErrorBody }
		switch {
		case w.Code < 400:
		case json.Unmarshal(w.Body.Bytes(), &refusal) != nil || refusal.Error.Kind == "" || refusal.Error.Message == "" && refusal.Error.Op == "":
			t.Errorf("%s %s?%s %q: %d %q", e.method, req.URL.Path, query, body, w.Code, w.Body)
		case refusal.Error.Kind == "internal":
			t.Errorf("%s %s?%s %q: %s", e.method, req.URL.Path, query, body, w.Body)
		}
	})
}
