package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"mulligan/errs"
	"mulligan/ipc"
)

// The OpenAPI document (OpenAPI 3.1.0) is generated from the routes and the Go types of their requests and answers, so it
// always agrees with them.

func (svc *Service) getOpenAPI(w http.ResponseWriter, _ *http.Request, _ ipc.Caller) error {
	svc.apiText.Do(func() { svc.apiText.text, svc.apiText.err = json.Marshal(svc.openAPI()) }) // generated once, because unauthenticated callers may request it often
	return answer(w, http.StatusOK, svc.apiText.text, svc.apiText.err)
}

// apiText is the OpenAPI document, which is generated on the first request.
type apiText struct {
	sync.Once
	text json.RawMessage
	err  error
}

// node is an object of the document.
type node = map[string]any

func (svc *Service) openAPI() node {
	paths, schemas := node{}, node{"Error": schemaOf(ipc.ErrorBody{})}
	for _, rt := range svc.routes() {
		method, path, _ := strings.Cut(rt.pattern, " ")
		item, ok := paths[path].(node)
		if !ok {
			item = node{}
			paths[path] = item
		}
		item[strings.ToLower(method)] = operation(rt, path, schemas)
	}
	return node{
		"openapi": "3.1.0",
		"info": node{
			"title": "mulligan", "version": svc.opt.Version,
			"description": "Checkpoints and rollbacks of running apps. On the unix socket the caller is the peer's uid; " +
				"on TCP a bearer token, a guest's id or a page's session says who it is.",
		},
		"paths": paths,
		"components": node{
			"schemas": schemas,
			"responses": node{"Error": node{
				"description": "What failed, on what, and what to do. The kind decides the status.",
				"content": jsonContent(node{
					"type": "object", "required": []string{"error"}, "properties": node{"error": reference("Error")},
				}),
			}},
			"securitySchemes": node{
				"token":   node{"type": "http", "scheme": "bearer"},
				"guest":   node{"type": "apiKey", "in": "header", "name": "X-Guest-Id"},
				"session": node{"type": "apiKey", "in": "cookie", "name": "mulligan_session", "description": "what changes things needs X-CSRF-Token, too"},
			},
		},
	}
}

func operation(rt route, path string, schemas node) node {
	op := node{"summary": rt.about, "operationId": operationID(rt.pattern), "parameters": parameters(rt, path)}
	switch {
	case rt.local:
		op["description"] = "Over the unix socket only."
		op["security"] = []node{}
	case rt.need == "":
		op["description"] = "Anybody is answered."
		op["security"] = []node{}
	default:
		op["description"] = "Needs the scope " + string(rt.need) + "."
		op["security"] = []node{{"token": []string{}}, {"guest": []string{}}, {"session": []string{}}}
	}
	if rt.body != nil {
		name := reflect.TypeOf(rt.body).Name() + "Request"
		schemas[name] = requestOf(rt.body)
		op["requestBody"] = node{"content": jsonContent(reference(name))}
	}
	op["responses"] = responses(rt, schemas)
	return op
}

func responses(rt route, schemas node) node {
	ok := node{"description": rt.about}
	content := node{}
	if rt.answer != nil {
		schema := schemaOf(rt.answer)
		if name := reflect.TypeOf(rt.answer).Name(); name != "" {
			schemas[name] = schema
			content = jsonContent(reference(name))
		} else {
			content = jsonContent(schema)
		}
	}
	if rt.events != "" {
		content["text/event-stream"] = node{"schema": node{"type": "string", "description": rt.events}}
	}
	if rt.text {
		content["text/plain"] = node{"schema": node{"type": "string"}}
	}
	if len(content) > 0 {
		ok["content"] = content
	}
	return node{strconv.Itoa(rt.code()): ok, "default": node{"$ref": "#/components/responses/Error"}}
}

// code returns the status of a route's successful answer.
func (rt route) code() int {
	if rt.status == 0 {
		return http.StatusOK
	}
	return rt.status
}

func jsonContent(schema any) node { return node{"application/json": node{"schema": schema}} }
func reference(name string) node  { return node{"$ref": "#/components/schemas/" + name} }

// operationID returns the name of an operation: postAppsTurns for "POST /api/apps/{app}/turns".
func operationID(pattern string) string {
	method, path, _ := strings.Cut(pattern, " ")
	id := strings.ToLower(method)
	for _, part := range strings.FieldsFunc(strings.TrimPrefix(path, "/api"), func(r rune) bool { return strings.ContainsRune("/{}.-_", r) }) {
		id += strings.ToUpper(part[:1]) + part[1:]
	}
	return id
}

var inPath = regexp.MustCompile(`\{(\w+)\}`)

var pathAbout = map[string]string{
	"app": "the app's id or slug", "cp": "a checkpoint's id", "turn": "a turn's id", "fork": "a fork's name", "remote": "a remote's name", "call": "a call's id", "token": "a token's id",
	"conversation": "a conversation's id",
}

// queryAbout returns the description of a query parameter, and its JSON type.
var queryAbout = map[string][2]string{
	"trigger":      {"string", "only those of this trigger"},
	"limit":        {"integer", "at most so many"},
	"before":       {"string", "only older ones than this checkpoint"},
	"conversation": {"string", "only those of this conversation"},
	"dry_run":      {"integer", "1: only say what would be done"},
	"purge":        {"integer", "1: its checkpoints go too"},
	"gaps":         {"integer", "1: look at every file for what cannot be captured or given back"},
	"verify":       {"integer", "1: check the whole trail's hashes"},
	"against":      {"string", "now, or a checkpoint's id"},
	"path":         {"array", "only this and what lies below it; may be given several times"},
	"patch":        {"integer", "1: with unified diffs"},
	"offset":       {"integer", "of the first one"},
	"full":         {"integer", "1: read all of it"},
}

func parameters(rt route, path string) []node {
	list := []node{}
	for _, m := range inPath.FindAllStringSubmatch(path, -1) {
		list = append(list, node{
			"name": m[1], "in": "path", "required": true, "description": pathAbout[m[1]], "schema": node{"type": "string"},
		})
	}
	for _, name := range strings.Fields(rt.query) {
		about := queryAbout[name]
		schema := node{"type": about[0]}
		if about[0] == "array" {
			schema["items"] = node{"type": "string"}
		}
		list = append(list, node{"name": name, "in": "query", "description": about[1], "schema": schema})
	}
	return list
}

// enums are the types that have a fixed set of values.
var enums = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[json.RawMessage](): {},
	reflect.TypeFor[ipc.Trigger]():     enum(ipc.TriggerDeploy, ipc.TriggerManual, ipc.TriggerAgent, ipc.TriggerPreRollback),
	reflect.TypeFor[ipc.Quiesce]():     enum("", ipc.QuiesceStop, ipc.QuiesceNone),
	reflect.TypeFor[ipc.OnUnhealthy](): enum("", ipc.UnhealthyKeep, ipc.UnhealthyUndo),
	reflect.TypeFor[ipc.StageName]():   enum(ipc.Stages...),
	reflect.TypeFor[ipc.StageStatus](): enum(ipc.StageOK, ipc.StageFailed, ipc.StageSkipped, ipc.StageRunning),
	reflect.TypeFor[ipc.Scope]():       enum(ipc.Scopes...),
	reflect.TypeFor[errs.Kind]():       enum(errs.Kinds...),
}

func enum[T ~string](values ...T) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string"}
	for _, v := range values {
		s.Enum = append(s.Enum, string(v))
	}
	return s
}

// schemaOf returns the schema of v's type in an answer, where lists are never null.
func schemaOf(v any) *jsonschema.Schema {
	s, err := jsonschema.ForType(reflect.TypeOf(v), &jsonschema.ForOptions{TypeSchemas: enums})
	if err != nil {
		panic(err) // the type is one of mulligan's
	}
	walk(s, func(s *jsonschema.Schema) {
		if slices.Equal(s.Types, []string{"null", "array"}) {
			s.Type, s.Types = "array", nil
		}
	})
	return s
}

// requestOf returns the schema of a request. All its fields are optional, and null means absent. An invalid request is an error
// of kind errs.Invalid.
func requestOf(v any) *jsonschema.Schema {
	s := schemaOf(v)
	walk(s, func(s *jsonschema.Schema) { s.Required = nil })
	return s
}

func walk(s *jsonschema.Schema, f func(*jsonschema.Schema)) {
	if s == nil {
		return
	}
	f(s)
	for _, p := range s.Properties {
		walk(p, f)
	}
	walk(s.Items, f)
	walk(s.AdditionalProperties, f)
}
