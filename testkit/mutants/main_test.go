package main

import (
	"go/parser"
	"go/token"
	"testing"
)

// Every fault still fits the product, and is Go.
func TestFaultsApply(t *testing.T) {
	packages := map[string]bool{}
	for _, f := range faults {
		text, err := f.apply("../..")
		if err != nil {
			t.Errorf("%s: %v", f.what, err)
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), f.file, text, 0); err != nil {
			t.Errorf("%s: %v", f.what, err)
		}
		packages[f.pkg] = true
	}
	if len(faults) < 15 || len(packages) < 14 {
		t.Errorf("%d faults in %d packages", len(faults), len(packages))
	}
}
