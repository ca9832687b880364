package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"mulligan/daemon/settings"
	"mulligan/docs/refdoc"
	"mulligan/errs"
	"mulligan/ipc"
)

// document is the OpenAPI document, as far as the page tells it.
type document struct {
	Paths      map[string]map[string]describedOp
	Components struct{ Schemas map[string]*jsonschema.Schema }
}

type describedOp struct {
	Summary, Description string
	Parameters           []struct {
		Name, In, Description string
		Schema                struct{ Type string }
	}
	RequestBody *struct{ Content map[string]media }
	Responses   map[string]struct{ Content map[string]media }
}

type media struct{ Schema *jsonschema.Schema }

// TestReference holds docs/reference/api.md to the OpenAPI document.
func TestReference(t *testing.T) {
	d := &Service{opt: &settings.Options{}}
	text, err := json.Marshal(d.openAPI())
	if err != nil {
		t.Fatal(err)
	}
	var doc document
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(`# The API

HTTP/1.1 with JSON on the daemon's unix socket, and on TCP where that is [switched on](../how-to/many-users.md). ` + "`GET /openapi.json`" + ` gives the
OpenAPI document that this page is made from. ` + "`{app}`" + ` is an app's id or its slug. What a caller does not own is not there: ` + "`not_found`" + `.

## Errors

An error's body is ` + "`{\"error\": {\"kind\", \"message\", \"op\", \"hint\"}}`" + `. The kind decides the status; [what each means and what to do](../troubleshooting.md).

| kind | status |
| --- | --- |
`)
	for _, k := range errs.Kinds {
		fmt.Fprintf(&b, "| `%s` | %d %s |\n", k, ipc.HTTPStatus(k), http.StatusText(ipc.HTTPStatus(k)))
	}
	b.WriteString("\n## Operations\n")
	for _, rt := range d.routes() { // they are in an order for readers
		method, path, _ := strings.Cut(rt.pattern, " ")
		op, ok := doc.Paths[path][strings.ToLower(method)]
		if !ok {
			t.Fatalf("the document lacks %s", rt.pattern)
		}
		describeOp(t, &b, rt.pattern, op)
	}
	b.WriteString("\n## Bodies\n\nOf what is sent every field may be left out, where not having it makes sense.\n")
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		describeSchema(&b, name, doc.Components.Schemas[name])
	}
	refdoc.Check(t, "api.md", b.String())
}

func describeOp(t *testing.T, b *strings.Builder, pattern string, op describedOp) {
	fmt.Fprintf(b, "\n### %s\n\n%s. %s\n", pattern, op.Summary, op.Description)
	if len(op.Parameters) > 0 {
		b.WriteString("\n| parameter | in | type | what it is |\n| --- | --- | --- | --- |\n")
	}
	for _, p := range op.Parameters {
		if p.Description == "" || p.Schema.Type == "" {
			t.Errorf("%s: nothing says what the parameter %s is", pattern, p.Name)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", p.Name, p.In, p.Schema.Type, refdoc.Cell(p.Description))
	}
	if op.RequestBody != nil {
		fmt.Fprintf(b, "\nReads %s.\n", typeWords(op.RequestBody.Content["application/json"].Schema))
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		if status == "default" {
			continue // an error
		}
		fmt.Fprintf(b, "\nAnswers %s%s.\n", status, answerWords(op.Responses[status].Content))
	}
}

func answerWords(content map[string]media) string {
	var words string
	if m, ok := content["application/json"]; ok {
		words += ": " + typeWords(m.Schema)
	}
	if _, ok := content["text/plain"]; ok {
		words += ": text"
	}
	if m, ok := content["text/event-stream"]; ok {
		words += "; events: " + m.Schema.Description
	}
	return words
}

func describeSchema(b *strings.Builder, name string, s *jsonschema.Schema) {
	fmt.Fprintf(b, "\n### %s\n\n| field | type |\n| --- | --- |\n", name)
	describeFields(b, "", s)
}

func describeFields(b *strings.Builder, prefix string, s *jsonschema.Schema) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		fmt.Fprintf(b, "| `%s%s` | %s |\n", prefix, name, refdoc.Cell(typeWords(p)))
		for inner, path := p, prefix+name; ; {
			if inner.Items != nil {
				inner, path = inner.Items, path+"[]"
				continue
			}
			if len(inner.Properties) > 0 {
				describeFields(b, path+".", inner)
			}
			break
		}
	}
}

// typeWords is a schema in a word or a few.
func typeWords(s *jsonschema.Schema) string {
	var words string
	switch {
	case s == nil:
		return "anything"
	case s.Ref != "":
		name := s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	case len(s.Enum) > 0:
		var values []string
		for _, v := range s.Enum {
			if v != "" {
				values = append(values, fmt.Sprintf("`%v`", v))
			}
		}
		return strings.Join(values, ", ")
	case s.Type == "array" || slices.Contains(s.Types, "array"):
		words = "list of " + typeWords(s.Items)
	case s.Type == "object" && s.AdditionalProperties != nil && len(s.Properties) == 0:
		words = "object of " + typeWords(s.AdditionalProperties)
	case s.Type != "":
		words = s.Type
	case len(s.Types) > 0:
		words = strings.Join(slices.DeleteFunc(slices.Clone(s.Types), func(t string) bool { return t == "null" }), " or ")
	default:
		words = "anything"
	}
	if slices.Contains(s.Types, "null") {
		words += " or null"
	}
	return words
}
