package docs

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/mcpserver"
)

// served is what the MCP server offers: the fields that each tool takes.
func served(t *testing.T) map[string][]string {
	t.Helper()
	here, there := mcp.NewInMemoryTransports()
	go func() { _ = mcpserver.New(mcpserver.Options{}).Run(t.Context(), there) }() // until the test ends
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	tools := map[string][]string{}
	for _, tool := range list.Tools {
		text, err := json.Marshal(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		var schema struct{ Properties map[string]any }
		if err := json.Unmarshal(text, &schema); err != nil {
			t.Fatal(err)
		}
		tools[tool.Name] = nil
		for name := range schema.Properties {
			tools[tool.Name] = append(tools[tool.Name], name)
		}
	}
	return tools
}

// fields adds the JSON names of a type's fields, and of those within.
func fields(typ reflect.Type, into map[string]bool) {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		fields(typ.Elem(), into)
	case reflect.Struct:
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name != "" && into[name] {
				continue
			}
			into[name] = true
			fields(typ.Field(i).Type, into)
		}
	}
}

var (
	codeBlock = regexp.MustCompile("(?s)```\n(.*?)```")
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
	toolCall  = regexp.MustCompile(`^([a-z_]+)\((.*)\)$`)
	argument  = regexp.MustCompile(`(?:^|, )([a-z_]+)=`)
)

// The skill speaks of tools, fields and kinds of errors that there are, and of all
// tools.
func TestSkill(t *testing.T) {
	b, err := os.ReadFile("skills/rollback/SKILL.md")
	if err != nil {
		t.Fatal(err)
	}
	head, text, found := strings.Cut(strings.TrimPrefix(string(b), "---\n"), "\n---\n")
	if !found || !strings.HasPrefix(head, "name: rollback\ndescription: ") || strings.Count(head, "\n") != 1 || len(head) > 1024 {
		t.Errorf("its head:\n%s", head)
	}
	tools := served(t)
	known := map[string]bool{"mulligan": true}
	for name, in := range tools {
		known[name] = true
		for _, field := range in {
			known[field] = true
		}
	}
	for _, result := range []any{ipc.RollbackResult{}, ipc.CheckpointList{}, ipc.App{}, ipc.ErrorBody{}, ipc.RevertResult{}} {
		fields(reflect.TypeOf(result), known)
	}
	for _, kind := range errs.Kinds {
		known[string(kind)] = true
	}

	var code []string
	for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
		code = append(code, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	for _, span := range codeSpan.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		code = append(code, span[1])
	}
	called := map[string]bool{}
	for _, c := range code {
		call := toolCall.FindStringSubmatch(c)
		if call == nil {
			if word, _, _ := strings.Cut(c, "="); !known[word] {
				t.Errorf("nothing is called %q", c)
			}
			continue
		}
		in, isTool := tools[call[1]]
		if !isTool {
			t.Errorf("there is no tool %s", call[1])
		}
		called[call[1]] = true
		for _, arg := range argument.FindAllStringSubmatch(call[2], -1) {
			if !slices.Contains(in, arg[1]) {
				t.Errorf("%s takes no %s", call[1], arg[1])
			}
		}
	}
	for name := range tools {
		if !called[name] {
			t.Errorf("the skill does not call %s", name)
		}
	}
}
