package main

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// The document of this very test names what it was built from.
func TestSBOM(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var a, b bytes.Buffer
	if err := run(self, "1.2.3", &a); err != nil {
		t.Fatal(err)
	}
	if err := run(self, "1.2.3", &b); err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("a second time it is another: %v", err)
	}
	var bom cdx.BOM
	if err := json.Unmarshal(a.Bytes(), &bom); err != nil {
		t.Fatal(err)
	}
	found := map[string]cdx.Component{}
	for _, c := range *bom.Components {
		found[c.Name] = c
	}
	if bom.Metadata.Component.Version != "1.2.3" || found["std"].Version != strings.TrimPrefix(runtime.Version(), "go") || found["github.com/CycloneDX/cyclonedx-go"].Version == "" {
		t.Errorf("it names %v and %v", bom.Metadata.Component, found)
	}
	if err := run("/etc/hostname", "1", &b); err == nil {
		t.Error("a file that is no program has a document")
	}
}
