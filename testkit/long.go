package testkit

import (
	"os"
	"strings"
	"testing"
	"time"
)

// Long says that all is asked for, and not a sample: make test-long sets
// MULLIGAN_TEST_LONG=1.
func Long() bool { return os.Getenv("MULLIGAN_TEST_LONG") == "1" }

// NeedLong skips a test that is part of the long run alone: its name begins with TestLong, and
// make test leaves such tests out.
func NeedLong(t testing.TB) {
	t.Helper()
	if !strings.HasPrefix(t.Name(), "TestLong") {
		t.Fatalf("%s: the name of a test of the long run begins with TestLong", t.Name())
	}
	if !Long() {
		t.Skip("part of make test-long")
	}
}

// NeedSoak skips a test that is part of the soak alone, and returns how long it shall go on:
// make soak sets MULLIGAN_TEST_SOAK.
func NeedSoak(t testing.TB) time.Duration {
	t.Helper()
	text := os.Getenv("MULLIGAN_TEST_SOAK")
	if text == "" {
		t.Skip("part of make soak")
	}
	length, err := time.ParseDuration(text)
	must(t, err)
	return length
}
