package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"mulligan/cmd/mulligan/output"
)

func TestAnswer(t *testing.T) {
	f := &initCmd{cli: &cli{out: &output.Printer{Stdout: output.NewWriter(io.Discard)}}}
	for in, want := range map[string]string{"\n": "", " YES \n": "YES", "y": "y", "what\n": "what", "": "no"} {
		if line, err := f.line(t.Context(), bufio.NewReader(strings.NewReader(in))); err != nil || line != want {
			t.Errorf("%q: %q, %v", in, line, err)
		}
	}
}

// An interrupt ends the question at once, although nothing is typed.
func TestAnswerInterrupted(t *testing.T) {
	f := &initCmd{cli: &cli{out: &output.Printer{Stdout: output.NewWriter(io.Discard)}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	silent, typing := io.Pipe()
	defer typing.Close()
	if _, err := f.line(ctx, bufio.NewReader(silent)); !errors.Is(err, context.Canceled) || exitCode(ctx, err) != exitInterrupted {
		t.Errorf("%v", err)
	}
}
