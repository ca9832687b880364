package testkit

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Sample returns which points of a matrix of all points this run takes, in order and counted from 0: about few of them, and all
// in a long run. The next run, by the last 16 bits of the seed, takes the next points, so that successive runs take every
// point. A long run takes the part that MULLIGAN_TEST_PART names, such as 3/8 for the third of eight parts. Sample logs what it
// takes.
func Sample(t testing.TB, what string, all, few int) []int {
	t.Helper()
	if all <= 0 || few <= 0 {
		t.Fatalf("a sample of %d of %d %s", few, all, what)
	}
	part, parts := Part(t, (all+few-1)/few)
	var taken []int
	for i := part; i < all; i += parts {
		taken = append(taken, i)
	}
	if parts > 1 {
		t.Logf("takes %d of %d %s: part %d of %d", len(taken), all, what, part+1, parts)
	}
	return taken
}

// Part returns which of a matrix's parts this run takes, counted from 0. A long run takes the part that it is told, and all
// parts by default. If a test takes parts, its subtests go on to their next part after the test has taken all of its own, so
// that every combination is reached.
func Part(t testing.TB, of int) (part, parts int) {
	t.Helper()
	if Long() {
		return longPart(t)
	}
	return draws.turn(t, of), of
}

// turn returns the number of the part for this run.
func (s *sources) turn(t testing.TB, of int) int {
	t.Helper()
	own := s.of(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	run := own.seed % (1 << 16)
	for i, c := range t.Name() {
		if above := s.tests[t.Name()[:i]]; c == '/' && above != nil && above.turns > 1 {
			run /= above.turns
		}
	}
	own.turns = multiple(max(own.turns, 1), uint64(of))
	return int(run % uint64(of))
}

// multiple returns the least common multiple.
func multiple(a, b uint64) uint64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// longPart returns the part, counted from 0, that MULLIGAN_TEST_PART names.
func longPart(t testing.TB) (part, parts int) {
	t.Helper()
	text := os.Getenv("MULLIGAN_TEST_PART")
	if text == "" {
		return 0, 1
	}
	if _, err := fmt.Sscanf(text, "%d/%d", &part, &parts); err != nil || part < 1 || part > parts {
		t.Fatalf("MULLIGAN_TEST_PART=%s: want the number of a part, and of all, as in 3/8", text)
	}
	return part - 1, parts
}

// tallyEnv is the variable with the path of the file in which make test-long counts kills, faults and flips.
const tallyEnv = "MULLIGAN_TEST_TALLY"

var tallying sync.Mutex

// Tally counts n kills, faults or flips that the test made.
func Tally(t testing.TB, what string, n int) {
	t.Helper()
	t.Logf("%d %s", n, what)
	path := os.Getenv(tallyEnv)
	if path == "" || n == 0 {
		return
	}
	tallying.Lock()
	defer tallying.Unlock()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(t, err)
	_, err = fmt.Fprintf(f, "%s %d %s\n", what, n, t.Name())
	must(t, err)
	must(t, f.Close())
}

// Some runs a sample of tests, few of all in this run, each as a subtest with the name of its function without "test": it is for tests of one
// kind, of which each takes long. Each test is parallel if it says so; then t is as well.
func Some(t *testing.T, few int, all ...func(t *testing.T)) {
	t.Helper()
	for _, i := range Sample(t, "tests", len(all), few) {
		name := runtime.FuncForPC(reflect.ValueOf(all[i]).Pointer()).Name()
		t.Run(strings.TrimPrefix(name[strings.LastIndexByte(name, '.')+1:], "test"), all[i])
	}
}
