package mcpserver

import (
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// jsonText returns v as JSON that is readable for a model: `mulligand &`, and not \u0026. v can always be encoded.
func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return readable(string(b))
}

// readable returns JSON with the characters <, > and & in the place of their escapes, which only pages of HTML need.
func readable(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			b.WriteByte(text[i])
			continue
		}
		if c := map[string]byte{`\u003c`: '<', `\u003e`: '>', `\u0026`: '&'}[text[i:min(len(text), i+6)]]; c != 0 {
			b.WriteByte(c)
			i += 5
			continue
		}
		b.WriteString(text[i:min(len(text), i+2)]) // an escaped backslash begins no escape
		i++
	}
	return b.String()
}

// readableText makes the text of a result, which is the JSON of its structured content, readable.
func readableText(r *mcp.CallToolResult) {
	if len(r.Content) != 1 || r.StructuredContent == nil {
		return
	}
	if text, ok := r.Content[0].(*mcp.TextContent); ok {
		r.Content = []mcp.Content{&mcp.TextContent{Text: readable(text.Text)}}
	}
}
