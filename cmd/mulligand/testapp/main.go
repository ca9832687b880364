// Command testapp is the app that the tests of cmd/mulligand have mulligan look after. It is a program of its own, and small: they
// put it into workspaces, of which each checkpoint and each fork has a copy.
//
//	testapp serve-app ADDRESS FILE
//	testapp serve-client ADDRESS WRITE… -- READ…
//	testapp visit ADDRESS
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"time"
)

func main() {
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "serve-app":
		serve(args[1], func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, args[2]) })
	case len(args) > 4 && args[0] == "serve-client" && slices.Contains(args, "--"):
		serve(args[1], client(args[2:]))
	case len(args) == 2 && args[0] == "visit":
		fmt.Print(visit(context.Background(), args[1]))
	default:
		fmt.Fprintf(os.Stderr, "testapp: what is %q?\n", args)
		os.Exit(2)
	}
}

// serve answers all requests at addr, with contents that are read anew each time.
func serve(addr string, handle http.HandlerFunc) {
	fmt.Fprintln(os.Stderr, http.ListenAndServe(addr, handle))
	os.Exit(1)
}

// client has, of two commands, the first run for each POST, with the request as input, and the second for each GET, and answers with
// what the command prints. So an app has the address of its database server in its code.
func client(args []string) http.HandlerFunc {
	at := slices.Index(args, "--")
	return func(w http.ResponseWriter, r *http.Request) {
		command := args[:at]
		if r.Method == http.MethodGet {
			command = args[at+1:]
		}
		password, _ := os.ReadFile("password") // without it, the server says so
		cmd := exec.CommandContext(r.Context(), command[0], command[1:]...)
		cmd.Stdin = r.Body
		for _, name := range []string{"PGPASSWORD=", "MYSQL_PWD=", "REDISCLI_AUTH="} {
			cmd.Env = append(cmd.Env, name+string(password))
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(out) // the caller may be gone
	}
}

// visit gets the page of the app at addr; "" when nobody answers.
func visit(ctx context.Context, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}
