// Command mulligan is the client: it asks the daemon, mulligand, over a unix
// socket and prints the answers. It holds no state and decides nothing.
//
// # Layout
//
// A file holds one command, or a family of commands, and is named after it: a
// struct of flags for each command, its run method, and its help text. The other files are:
//
//	cli.go         the flags and helpers that all commands share, and the tree of commands
//	completion.go  what a shell completes, besides the command of that name
//	exit.go        exit codes, and how errors are printed
//	resolve.go     how a person names a checkpoint
//
// The packages below this folder hold what is not about one command: output
// prints results, values reads values from the command line, detect is what init
// finds in a folder, place is what paths are relative to, launch starts the user's daemon,
// picker is the interactive choice, and doctor examines the host.
package main

import (
	"context"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	// After the first interrupt, a second one ends the program at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, newCLI(), os.Args[1:]))
}
