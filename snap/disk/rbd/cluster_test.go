package rbd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/testkit"
)

// TestCrash: a program that crashes while it looks at the cluster runs once more. An error says why it crashed, and a change is not made twice.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	runs := filepath.Join(dir, "runs")
	program := func(crashes int) {
		t.Helper()
		text := fmt.Sprintf(`#!/bin/sh
echo "$@" >>%[1]s
[ $(wc -l <%[1]s) -gt %[2]d ] && echo '{"size": 7}' && exit
printf '%%s\n' 'a.cc: In function f()' 'a.cc: 12: FAILED ceph_assert(r == 0)' ' 1: main' '--- end dump of recent events ---' >&2
kill -ABRT $$
`, runs, crashes)
		if err := errors.Join(os.RemoveAll(runs), testkit.WriteProgram(filepath.Join(dir, "rbd"), []byte(text))); err != nil {
			t.Fatal(err)
		}
	}
	ran := func() int {
		b, _ := os.ReadFile(runs)
		return strings.Count(string(b), "\n")
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	c := &cluster{}
	c.args.Store(&[]string{"--id", "me"})

	program(1)
	info, err := c.info(t.Context(), "p/a")
	if err != nil || info.Size != 7 || ran() != 2 {
		t.Errorf("after one crash: %+v, %v, %d runs", info, err, ran())
	}
	program(3)
	if info, err := c.info(t.Context(), "p/a"); err != nil || info.Size != 7 || ran() != 4 {
		t.Errorf("after three crashes: %+v, %v, %d runs", info, err, ran())
	}
	program(4)
	if _, err := c.info(t.Context(), "p/a"); err == nil || !strings.Contains(err.Error(), "rbd info p/a: a.cc: 12: FAILED ceph_assert(r == 0): the program rbd crashed (signal: aborted") || ran() != 4 {
		t.Errorf("after four crashes: %v, %d runs", err, ran())
	}
	program(1)
	if _, err := c.rbd(t.Context(), callLimit, "snap", "create", "p/a@s"); !errors.Is(err, errCrashed) || ran() != 1 {
		t.Errorf("a change: %v, %d runs", err, ran())
	}
}

// TestCrashLine: of what a program says when it crashes, the line that says why is kept, with the words of an exception.
func TestCrashLine(t *testing.T) {
	for text, want := range map[string]string{
		"terminate called after throwing an instance of 'std::system_error'\n  what():  Resource temporarily unavailable\n*** Caught signal (Aborted) **\n in thread 7f\n": "terminate called after throwing an instance of 'std::system_error', what():  Resource temporarily unavailable",
		"a.cc: In function f()\na.cc: 12: FAILED ceph_assert(r == 0)\n 1: main\n":                                                                                          "a.cc: 12: FAILED ceph_assert(r == 0)",
		"*** Caught signal (Segmentation fault) **\n in thread 7f\n":                                                                                                       "*** Caught signal (Segmentation fault) **",
		"terminate called without an active exception":                                                                                                                     "terminate called without an active exception",
		"one\ntwo\n": "two",
		"":           "",
	} {
		if got := crashLine(text); got != want {
			t.Errorf("of %q it keeps %q, want %q", text, got, want)
		}
	}
}
