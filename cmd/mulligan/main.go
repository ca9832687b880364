// Command mulligan is the client: it asks a daemon, mulligand, over a unix
// socket and prints what it answers. It holds no state and decides nothing.
//
// # Layout
//
// One file per command, named after it: a struct of flags, its run method, and
// the help text beside them. cli.go holds what all commands share, exit.go the
// exit codes, print.go the three kinds of output (table, plain lines, JSON),
// resolve.go how a checkpoint is named.
package main

import (
	"context"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	// A second interrupt ends the program at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, newCLI(), os.Args[1:]))
}
