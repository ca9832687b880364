package testkit

import (
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// runEnv is the environment variable with the number of the run on this machine. A drawn seed ends with this number, so that
// samples rotate.
const runEnv = "MULLIGAN_TEST_RUN"

// seedEnv is the environment variable that holds the seed of all draws of a run.
const seedEnv = "MULLIGAN_TEST_SEED"

// Rand returns a source of random numbers for a test. Every run has a new seed, unless MULLIGAN_TEST_SEED is set. The log of a
// failing test begins with the command that repeats its draws. The source depends on the seed, the name of the test, the
// labels, and how many sources with these labels the test took before. Goroutines must not share a source: each needs its own,
// with a label of its own.
func Rand(t testing.TB, labels ...any) *rand.Rand {
	t.Helper()
	sum := draws.of(t).next(fmt.Sprint(t.Name(), labels))
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])))
}

// SeedEnv returns the variable that passes the seed of a test to a process which also draws.
func SeedEnv(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("%s=%d", seedEnv, draws.of(t).seed)
}

// Rapid sets the seed of the test's next rapid.Check from the seed of the run. Tests that call Rapid must not run in parallel,
// because rapid's seed is a flag.
func Rapid(t testing.TB) {
	t.Helper()
	f := flag.Lookup("rapid.seed")
	if given("rapid.seed") {
		return
	}
	if err := f.Value.Set(strconv.FormatUint(Rand(t, "rapid").Uint64()|1, 10)); err != nil {
		t.Fatal(err)
	}
}

// Checks limits each rapid.Check of the test to n checks, unless the command line sets a number or the run is a long one.
func Checks(t testing.TB, n int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	if checksGiven() || Long() {
		return
	}
	old := f.Value.String()
	must(t, f.Value.Set(strconv.Itoa(n)))
	t.Cleanup(func() { must(t, f.Value.Set(old)) })
}

// checksGiven is evaluated once, before a test sets the flag.
var checksGiven = sync.OnceValue(func() bool { return given("rapid.checks") })

// given reports whether a flag was set on the command line.
func given(name string) (found bool) {
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// draws holds the state of the draws of all tests in this process.
var draws = &sources{tests: map[string]*testSource{}}

type sources struct {
	mu    sync.Mutex
	seed  uint64 // 0 until it is known
	tests map[string]*testSource
}

// testSource is the state of one test's draws.
type testSource struct {
	t     testing.TB
	seed  uint64
	mu    sync.Mutex
	taken map[string]int // by labels
	turns uint64         // the number of runs after which the test takes the same parts again; 0 means 1
}

// of returns the testSource of t. With go test -count, each run of a test in the process has another seed.
func (s *sources) of(t testing.TB) *testSource {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seed == 0 {
		s.seed = firstSeed(t)
	}
	old := s.tests[t.Name()]
	if old != nil && old.t == t {
		return old
	}
	now := &testSource{t: t, seed: s.seed, taken: map[string]int{}}
	if old != nil {
		now.seed = old.seed + 1
	}
	s.tests[t.Name()] = now
	if _, bench := t.(*testing.B); !bench { // the log of a benchmark is printed even if the benchmark succeeds
		t.Logf("the same draws again: %s", command(t.Name(), now.seed))
	}
	return now
}

// next returns the seed of the next source with these labels.
func (s *testSource) next(labels string) [sha256.Size]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.taken[labels]
	s.taken[labels]++
	return sha256.Sum256(fmt.Append(nil, s.seed, n, labels))
}

// firstSeed returns the seed of this process.
func firstSeed(t testing.TB) uint64 {
	t.Helper()
	text := os.Getenv(seedEnv)
	if text == "" {
		var b [8]byte
		crand.Read(b[:])
		seed := binary.LittleEndian.Uint64(b[:])>>1 | 1<<62 // -count adds to it
		if run, err := strconv.ParseUint(os.Getenv(runEnv), 10, 16); err == nil {
			seed = seed&^(1<<16-1) | run
		}
		return seed
	}
	seed, err := strconv.ParseUint(text, 0, 64)
	if err != nil || seed == 0 {
		t.Fatalf("%s=%s: it must be a number above 0", seedEnv, text)
	}
	return seed
}

// command returns the command line that repeats a test with its seed.
func command(name string, seed uint64) string {
	words := []string{fmt.Sprintf("%s=%d", seedEnv, seed)}
	for _, v := range slices.Sorted(slices.Values(os.Environ())) {
		if key, value, _ := strings.Cut(v, "="); strings.HasPrefix(key, "MULLIGAN_TEST_") && key != seedEnv && key != runEnv && key != tallyEnv {
			words = append(words, key+"="+quoted(value))
		}
	}
	words = append(words, "go", "test", "-count=1")
	pkg := path.Base(os.Args[0])
	if info, ok := debug.ReadBuildInfo(); ok {
		pkg = strings.TrimSuffix(info.Path, ".test")
		for _, s := range info.Settings {
			switch {
			case s.Key == "-tags" && s.Value != "":
				words = append(words, "-tags="+s.Value)
			case s.Key == "-race" && s.Value == "true":
				words = append(words, "-race")
			}
		}
	}
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(append(words, "-run", quoted(strings.Join(parts, "/")), pkg), " ")
}

// quoted returns s as one word of a shell command.
func quoted(word string) string {
	if !regexp.MustCompile(`[^\w=./:,-]`).MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Bytes returns n random bytes, which cannot be compressed, from a source of their own.
func Bytes(t testing.TB, n int, labels ...any) []byte {
	t.Helper()
	sum := draws.of(t).next(fmt.Sprint(t.Name(), labels))
	p := make([]byte, n)
	_, _ = rand.NewChaCha8(sum).Read(p) // it cannot fail
	return p
}
