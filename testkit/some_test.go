package testkit

import (
	"fmt"
	"slices"
	"testing"
)

var ran []string

func testOne(*testing.T)   { ran = append(ran, "one") }
func testTwo(*testing.T)   { ran = append(ran, "two") }
func testThree(*testing.T) { ran = append(ran, "three") }

// Successive runs run all tests of a group, and a long run runs them at once.
func TestSome(t *testing.T) {
	old := draws
	t.Cleanup(func() { draws = old })
	t.Setenv("MULLIGAN_TEST_PART", "")
	for long, runs := range map[string]int{"": 3, "1": 1} {
		t.Setenv("MULLIGAN_TEST_LONG", long)
		ran = nil
		for run := range runs {
			t.Setenv(seedEnv, fmt.Sprint(5<<20+run))
			draws = &sources{tests: map[string]*testSource{}}
			Some(t, 1, testOne, testTwo, testThree)
		}
		if slices.Sort(ran); !slices.Equal(ran, []string{"one", "three", "two"}) {
			t.Errorf("long %q: %q ran", long, ran)
		}
	}
}
