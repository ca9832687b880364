//go:build man

package main

import (
	"fmt"
	"os"

	"mulligan/cmd/mulligan/manual"
)

// init makes another program of this one, for make man: it writes the manual pages into the folder that its argument names.
func init() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run -tags man ./cmd/mulligan DIR")
		os.Exit(2)
	}
	if err := manual.WriteAll(os.Args[1], newRoot(newCLI(), nil)); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
