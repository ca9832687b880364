package testkit

import (
	"os"
	"strings"
	"testing"
	"time"
)

// Long reports whether tests run whole matrices, and not samples. make test-long sets MULLIGAN_TEST_LONG=1.
func Long() bool { return os.Getenv("MULLIGAN_TEST_LONG") == "1" }

// Every reports whether a long run takes every step of an operation, however often it comes to steps of the same kind. That takes many hours more. make test-long EVERY=1
// sets MULLIGAN_TEST_EVERY=1.
func Every() bool { return os.Getenv("MULLIGAN_TEST_EVERY") == "1" }

// NeedLong skips a test that belongs only to the long run. The test's name must begin with TestLong; make test leaves out such
// tests.
func NeedLong(t testing.TB) {
	t.Helper()
	if !strings.HasPrefix(t.Name(), "TestLong") {
		t.Fatalf("%s: the name of a test of the long run begins with TestLong", t.Name())
	}
	if !Long() {
		t.Skip("part of make test-long")
	}
}

// NeedSoak skips a test that belongs only to the soak, and returns the test's duration. make soak sets MULLIGAN_TEST_SOAK.
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
