package testkit

import (
	"os"
	"testing"
)

// Damage changes a bit in the middle of a file, as a disk at fault does.
func Damage(t testing.TB, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
