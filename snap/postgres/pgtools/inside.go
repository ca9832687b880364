package pgtools

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"mulligan/errs"
	"mulligan/snap/postgres/pglogin"
)

// Inside is the container in which a server is. The tools that it has there are used if this host has none of the server's version.
type Inside struct {
	Port int // the server's port in the container
	// Dial connects to the server; nil: it is reached by the DSN.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Run runs a command in the container.
	Run func(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) (status int, err error)
}

// insideScript runs the tool $2 of version $1 with the further arguments. Images keep it in a folder of the version or in PATH.
const insideScript = `tool=$2
for dir in "/usr/lib/postgresql/$1/bin" "/usr/pgsql-$1/bin" "/usr/libexec/postgresql$1" /usr/local/pgsql/bin; do
	[ -x "$dir/$tool" ] && tool=$dir/$tool && break
done
shift 2
exec "$tool" "$@"`

// InsideCommand returns the command that runs a program of a major version in a container.
func InsideCommand(major int, name string, args ...string) []string {
	return append([]string{"/bin/sh", "-c", insideScript, "sh", strconv.Itoa(major), name}, args...)
}

// find returns the tools in the container of a server with this major version.
func (in *Inside) find(ctx context.Context, major int) (Pair, error) {
	out := &head{limit: 4 << 10}
	for _, name := range []string{"pg_restore", "pg_dump"} {
		out.Reset()
		status, err := in.Run(ctx, InsideCommand(major, name, "--version"), []string{"LC_ALL=C"}, nil, out, io.Discard)
		if err != nil {
			return Pair{}, err
		}
		if status != 0 {
			return Pair{}, errs.New(errs.Unsupported, "", "the container has no %s", name)
		}
	}
	t := parseVersion(out.String())
	if t.Major < major {
		return Pair{}, errs.New(errs.Unsupported, "", "the container has pg_dump of version %d", t.Major)
	}
	return t, nil
}

// parseVersion reads what a tool prints of its version: "pg_dump (PostgreSQL) 15.18 (Debian 15.18-0)".
func parseVersion(line string) (t Pair) {
	_, t.Version, _ = strings.Cut(strings.TrimSpace(line), ") ")
	major, _, _ := strings.Cut(t.Version, ".")
	t.Major, _ = strconv.Atoi(digits(major)) // 0: not a version
	return t
}

// run runs a command in the server's container. The password is in the command's environment there, which nobody sees who does not control the
// container, and with it the server, anyway.
func (in *Inside) run(ctx context.Context, login pglogin.Settings, password string, c Command) error {
	login.Host, login.Port = "127.0.0.1", strconv.Itoa(in.Port)
	login.TLS = map[string]string{"sslmode": "prefer"} // the owner's certificates are not in the container
	env := environment(login, "/nonexistent")
	env = append(env[1:], "PGPASSWORD="+password) // the container has a PATH of its own
	var file io.Reader
	if c.File != nil {
		file = bytes.NewReader(c.File)
	}
	stderr := &head{limit: 64 << 10}
	status, err := in.Run(ctx, InsideCommand(c.Tools.Major, c.Name, c.Args...), env, file, c.Out, stderr)
	switch {
	case err != nil:
		return err
	case status != 0:
		return c.failed(stderr, fmt.Errorf("it ended with %d in the server's container", status))
	}
	return nil
}
