package snap

import "context"

// Server says how to run a database server for one app alone, as each fork of an app has one. The server runs with the rights of the
// app's owner, in namespaces of its own, without any network but their loopback. A driver's package makes it from [Parent]s.
type Server struct {
	Programs  []string // names or paths of the program, any of which will do
	Install   string   // what to install where there is none of them
	NeedsUser bool     // it does not run as root, nor as a user without a name
	Args      []string
	Config    []byte // the content of the file ServerConfig
	// Setup is a shell script that runs in ServerData before each start, with the program as $0. It makes the data that an empty
	// server needs, and must be repeatable: it may be killed at any time. "": the server needs none.
	Setup string
	// Listen is the port of 127.0.0.1 where the server listens, in its own namespaces. ListenSocket is, in place of a port, the path
	// of a Unix socket there.
	Listen       int
	ListenSocket string
	// Call is a port of 127.0.0.1 in the server's namespaces, where it reaches the driver's socket; 0: it has no need to.
	Call int
	// Port and Socket are where the app's clients expect the server: a port of the loopback, or the path of a Unix socket.
	Port   int
	Socket string
	// SocketName is the name that clients give to the socket's file, whatever its folder; "": they take any name.
	SocketName string
	// Usual are folders where clients look for the parent's server if they are not told where it is. In a fork, they find the fork's.
	Usual []string
}

// Parent is what a Server is made from: a database of the parent, for which the Server stands in.
type Parent struct {
	DSN  string
	Kind string // what ServerKind said, or ""
}

// ServerDriver is a driver whose database is on a server, of which forks have one of their own.
type ServerDriver interface {
	// ServerKind describes the server and its user, as far as a fork's own server must be like it. It holds no secret.
	ServerKind(context.Context) (string, error)
	// Answers returns nil when the server answers, and can be used.
	Answers(context.Context) error
}

// The places of a Server's files, as it sees them.
const (
	ServerData   = "/tmp/data"       // the folder where it may write; it is where it starts
	ServerConfig = "/tmp/etc/config" // a file that only the server's owner may read
)
