package testkit

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// drawn is what a test draws first with these labels.
func drawn(t testing.TB, labels ...any) uint64 { return Rand(t, labels...).Uint64() }

// The seed, the name, the labels and the order decide what is drawn.
func TestRand(t *testing.T) {
	with := func(seed string) {
		t.Setenv(seedEnv, seed)
		old := draws
		draws = &sources{tests: map[string]*testSource{}}
		t.Cleanup(func() { draws = old })
	}
	fresh := func(name string) *fake { return &fake{name: name} }
	with("7")
	a := fresh("TestA")
	first, second, other := drawn(a), drawn(a), drawn(a, "writer", 1)
	if first == second || first == other || second == other || drawn(fresh("TestB")) == first {
		t.Error("two sources draw the same")
	}
	if len(a.logged) != 1 || !strings.Contains(a.logged[0], seedEnv+"=7 ") || !strings.Contains(a.logged[0], "-run '^TestA$' mulligan/testkit") {
		t.Errorf("logged: %q", a.logged)
	}
	again := fresh("TestA") // as with -count=2
	if drawn(again) == first || !strings.Contains(again.logged[0], seedEnv+"=8 ") {
		t.Errorf("the second run draws what the first drew: %q", again.logged)
	}
	with("7")
	b := fresh("TestA")
	if drawn(b, "writer", 1) != other || drawn(b) != first || drawn(b) != second {
		t.Error("the same seed draws something else")
	}
	with("8")
	if drawn(fresh("TestA")) == first {
		t.Error("another seed draws the same")
	}
	with("")
	one := drawn(fresh("TestA"))
	with("")
	if drawn(fresh("TestA")) == one {
		t.Error("two runs draw the same")
	}
	with("seven")
	if f := play(func(t testing.TB) { drawn(t) }); !strings.Contains(f.failed, "seven") {
		t.Errorf("a seed that is no number: %+v", f)
	}
}

// TestDrawsAndFails is what TestCommandReproduces runs.
func TestDrawsAndFails(t *testing.T) {
	if os.Getenv("MULLIGAN_TEST_DRAWS") == "" {
		return
	}
	t.Run("it's a \"sub\" (1)", func(t *testing.T) { t.Errorf("drawn: %d", drawn(t)) })
}

// The command in the log of a test that failed draws what the test drew.
func TestCommandReproduces(t *testing.T) {
	t.Setenv("MULLIGAN_TEST_DRAWS", "yes, 'it' does")
	t.Setenv(seedEnv, "")
	fails := func(line string) (number, command string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		out, err := cmd.CombinedOutput()
		number = regexp.MustCompile(`drawn: \d+`).FindString(string(out))
		_, rest, _ := strings.Cut(string(out), "the same draws again: ")
		command, _, _ = strings.Cut(rest, "\n")
		if err == nil || number == "" || command == "" {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
		return number, command
	}
	number, command := fails("go test -count=1 -run '^TestDrawsAndFails$' .")
	if again, _ := fails(command); again != number {
		t.Errorf("%s: %s, and then %s", command, number, again)
	}
}
