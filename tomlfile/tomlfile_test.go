package tomlfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
)

type sample struct {
	Name   string  `toml:"name"`
	Limits limits  `toml:"limits"`
	Items  []*item `toml:"item"`
}

type limits struct {
	Max Size `toml:"max"`
}

type item struct {
	Kind string `toml:"kind"`
}

func TestErrorfFindsTheLine(t *testing.T) {
	text := "name = 'x'\nlimits = { max = 1 }\n\n[[item]]\nkind = 'a'\n\n[[ item ]]\n\"kind\" = 'b'\n"
	var s sample
	doc, err := Decode("test", "f", []byte(text), &s)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		key  string
		nth  int
		want string
	}{
		{"name", 0, "test: f:1: no"}, {"limits.max", 0, "test: f:2: no"}, {"item.kind", 0, "test: f:5: no"},
		{"item.kind", 1, "test: f:8: no"}, {"item.other", 1, "test: f:7: no"}, {"absent", 0, "test: f: no"},
	} {
		if got := doc.Errorf(tt.key, tt.nth, "no").Error(); got != tt.want {
			t.Errorf("%s #%d: %q, want %q", tt.key, tt.nth, got, tt.want)
		}
	}
}

func TestUnknownKeys(t *testing.T) {
	for text, want := range map[string]string{
		"nmae = 'x'":                    `test: f:1: unknown key "nmae"`,
		"\n[limits]\n\nmix = 1":         `test: f:4: unknown key "mix" in [limits]`,
		"limits = { max = 1, mox = 2 }": `test: f:1: unknown key "mox" in [limits]`,
		"[[item]]\n[item.deep]\nx = 1":  `test: f:2: unknown key "deep" in [item]`,
	} {
		var s sample
		_, err := Decode("test", "f", []byte(text), &s)
		if err == nil || err.Error() != want || errs.HintOf(err) == "" {
			t.Errorf("%q: %v (hint %q), want %q", text, err, errs.HintOf(err), want)
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{
		"max = '20GiB'": {Bytes: 20 << 30}, "max = 7": {Bytes: 7}, "max = '1.5 kB'": {Bytes: 1500}, "max = '0'": {},
		"max = -1": {Bytes: -1, Bad: true}, "max = '-1'": {Bad: true}, "max = 'x'": {Bad: true}, "max = '1,5GB'": {Bad: true}, "max = true": {Bad: true}, "max = '16EiB'": {Bad: true},
	} {
		var l limits
		if _, err := Decode("test", "f", []byte(text), &l); err != nil || l.Max != want {
			t.Errorf("%s: %+v, %v, want %+v", text, l.Max, err, want)
		}
	}
}

func TestReadIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big.toml")
	if err := os.WriteFile(path, []byte(strings.Repeat("#", MaxSize+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read("test", path); errs.KindOf(err) != errs.Invalid {
		t.Errorf("a file over the limit: %v", err)
	}
}
