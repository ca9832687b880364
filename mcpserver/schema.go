package mcpserver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"mulligan/ipc"
)

// The list of tools is in every prompt of every agent, so schemas are short: an input schema has all arguments, an output
// schema only the fields that are always there. Results have more fields than their schemas.

// inputSchema derives a schema from the tags of T. It replaces nullable types by plain ones, because some clients refuse a list
// of types; nulls are dropped before validation.
func inputSchema[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(err) // T is a struct of this package
	}
	for name, p := range s.Properties {
		if i := slices.Index(p.Types, "null"); i >= 0 && len(p.Types) == 2 {
			p.Type, p.Types = p.Types[1-i], nil
		}
		if name == "trigger" {
			p.Enum = []any{ipc.TriggerDeploy, ipc.TriggerManual, ipc.TriggerAgent, ipc.TriggerPreRollback}
		}
	}
	return s
}

// usage returns how a tool with this input is called: tool(needed, optional?).
func usage(name string, in *jsonschema.Schema) string {
	args := slices.Clone(in.PropertyOrder)
	for i, a := range args {
		if !slices.Contains(in.Required, a) {
			args[i] += "?"
		}
	}
	return fmt.Sprintf("%s(%s)", name, strings.Join(args, ", "))
}

// object returns the schema of an object with required properties, each written as "name type".
func object(properties ...string) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}}
	for _, p := range properties {
		name, typ, _ := strings.Cut(p, " ")
		s.Properties[name] = &jsonschema.Schema{Type: typ}
		s.Required = append(s.Required, name)
		s.PropertyOrder = append(s.PropertyOrder, name)
	}
	return s
}

func checkpointSchema() *jsonschema.Schema {
	return object("checkpoint_id string", "trigger string", "pinned boolean", "created_at string",
		"session_token string", "next string")
}

func listSchema() *jsonschema.Schema {
	s := object("checkpoints array", "storage_usage object", "session_token string", "next string")
	s.Properties["checkpoints"].Items = object("checkpoint_id string", "created_at string")
	return s
}

func rollbackSchema() *jsonschema.Schema {
	s := object("rolled_back boolean", "recovered boolean", "stages array", "changes_reverted array", "changes_total integer",
		"warnings array", "session_token string", "next string")
	s.Properties["stages"].Items = object("stage string", "status string")
	s.Properties["changes_reverted"].Items = object("path string", "operation string")
	s.Properties["warnings"].Items = &jsonschema.Schema{Type: "string"}
	return s
}

func forksSchema() *jsonschema.Schema {
	s := object("forks array", "session_token string", "next string")
	s.Properties["forks"].Items = object("name string", "app_id string", "state string", "folder string")
	return s
}

func compareSchema() *jsonschema.Schema {
	s := object("forks array", "session_token string", "next string")
	s.Properties["forks"].Items = object("name string", "state string")
	return s
}

func keepSchema() *jsonschema.Schema {
	return object("rolled_back boolean", "stages array", "warnings array", "session_token string", "next string")
}

func dropSchema() *jsonschema.Schema {
	return object("dropped boolean", "name string", "session_token string", "next string")
}

func deleteSchema() *jsonschema.Schema {
	return object("deleted boolean", "checkpoint_id string", "session_token string", "next string")
}

func diffSchema() *jsonschema.Schema {
	s := object("from string", "to string", "changes array", "changes_total integer", "session_token string", "next string")
	s.Properties["changes"].Items = object("path string", "operation string")
	return s
}

func setSchema() *jsonschema.Schema {
	return object("message_id string", "session_token string", "next string")
}

func revertSchema() *jsonschema.Schema {
	s := object("restored_paths array", "restored_total integer", "conflicts array",
		"warnings array", "session_token string", "next string")
	s.Properties["restored_paths"].Items = &jsonschema.Schema{Type: "string"}
	s.Properties["conflicts"].Items = object("path string", "reason string")
	return s
}
