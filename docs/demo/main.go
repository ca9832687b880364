// Command demo shows mulligan at work. A small web app is broken in its code,
// its files and its data, the way a coding agent might break it; mulligan takes
// it back, forward into the failure again, and back once more. After each step
// everything is compared with what was written down before. It uses the built
// programs as anybody would, and ends with 0 only if every comparison held.
//
// Usage: demo [--bin DIR], after `make build`; `make demo` does both.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// allowed is how long the whole demo may take; it needs seconds.
const allowed = 3 * time.Minute

func main() {
	bin := flag.String("bin", "bin", "the `folder` of the built programs, with demo/guestbook in it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends it at once
	ctx, cancel := context.WithTimeout(ctx, allowed)
	defer cancel()

	begin := time.Now()
	err := perform(ctx, *bin)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), context.Canceled):
		fmt.Fprintln(os.Stderr, "\ndemo: interrupted:", err)
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "\ndemo: FAILED:", err)
		os.Exit(1)
	}
	fmt.Printf("\nEvery comparison held. %.1f s, and nothing is left behind.\n", time.Since(begin).Seconds())
}

// perform sets the stage, plays the story and clears the stage, whatever happened.
func perform(ctx context.Context, bin string) (err error) {
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	s, err := newStage(bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.clear()) }()
	err = play(ctx, s)
	if err != nil && ctx.Err() == nil {
		s.showLog()
	}
	return err
}
