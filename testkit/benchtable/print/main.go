// Command print prints the rows in the file that BENCH_TABLE names (see [benchtable]).
package main

import (
	"fmt"
	"os"

	"mulligan/testkit/benchtable"
)

func main() {
	rows, err := benchtable.Read(os.Getenv("BENCH_TABLE"))
	if err == nil {
		err = benchtable.Print(os.Stdout, rows)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "print the table of the benchmarks:", err)
		os.Exit(1)
	}
}
