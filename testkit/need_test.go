package testkit

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fake is a test that notes how it ends, and goes on.
type fake struct {
	testing.TB
	name            string
	failed, skipped string
	logged          []string
}

// ended is what a fake panics with, where a test would end.
type ended struct{}

func (f *fake) Helper()                      {}
func (f *fake) Name() string                 { return f.name }
func (f *fake) Fatal(args ...any)            { f.failed = fmt.Sprint(args...); panic(ended{}) }
func (f *fake) Fatalf(s string, args ...any) { f.Fatal(fmt.Sprintf(s, args...)) }
func (f *fake) Skip(args ...any)             { f.skipped = fmt.Sprint(args...); panic(ended{}) }
func (f *fake) Logf(s string, args ...any)   { f.logged = append(f.logged, fmt.Sprintf(s, args...)) }

// play runs a test to its end.
func play(test func(t testing.TB)) *fake {
	f := &fake{name: "TestPlayed"}
	func() {
		defer func() {
			if e := recover(); e != nil && e != (ended{}) {
				panic(e)
			}
		}()
		test(f)
	}()
	return f
}

// What is missing is installed, skipped with the reason, or a failure.
func TestNeed(t *testing.T) {
	const program = "mulligan-no-such-program"
	needs["nothing"] = need{[]string{"mulligan-nothing"}, []string{program}}
	old := install
	t.Cleanup(func() { delete(needs, "nothing"); install = old })
	asked := 0
	install = func(packages []string) error {
		asked++
		if !slices.Equal(packages, []string{"mulligan-nothing"}) {
			t.Errorf("installs %v", packages)
		}
		return errors.New("no such package")
	}
	need := func(t testing.TB) { Need(t, "nothing") }

	t.Setenv("MULLIGAN_TEST_NOSKIP", "")
	if f := play(need); !strings.Contains(f.skipped, program) || !strings.Contains(f.skipped, "apt-get install mulligan-nothing") || f.failed != "" || asked != 0 {
		t.Errorf("where a test may be skipped: %+v, %d installations", f, asked)
	}
	t.Setenv("MULLIGAN_TEST_NOSKIP", "1")
	f := play(need)
	if !strings.Contains(f.failed, program) || f.skipped != "" {
		t.Errorf("where nothing may be missing: %+v", f)
	}
	if root := os.Geteuid() == 0; root != (asked == 1) || root != strings.Contains(f.failed, "no such package") {
		t.Errorf("%d installations: %+v", asked, f)
	}
	if os.Geteuid() == 0 {
		path := t.TempDir()
		install = func([]string) error {
			t.Setenv("PATH", path)
			return os.WriteFile(path+"/"+program, []byte("#!/bin/sh\n"), 0o755)
		}
		if f := play(need); f.failed != "" || f.skipped != "" {
			t.Errorf("what was installed is still missing: %+v", f)
		}
	}
	if f := play(func(t testing.TB) { Need(t, "northing") }); !strings.Contains(f.failed, "northing") {
		t.Errorf("an unknown need: %+v", f)
	}
}

// make deps installs at once whatever Need would, one by one.
func TestMakefileInstallsNeeds(t *testing.T) {
	text, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^(?:test-long: )?(?:PACKAGES|LIBVIRT)\s*\+?:?=((?:.*\\\n)*.*)$`).FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, strings.FieldsFunc(m[1], func(r rune) bool { return strings.ContainsRune(" \t\n\\$(),", r) })...)
	}
	for _, p := range Packages() {
		if !slices.Contains(listed, p) {
			t.Errorf("the Makefile's packages lack %s", p)
		}
	}
}
