package snap

import "context"

// Server says how to run a database server for one app alone, for example for a fork. The server runs with the rights of the
// app's owner, in namespaces of its own, whose only network is their loopback. A driver's package makes a Server from
// [Parent]s.
type Server struct {
	Programs  []string // alternative names or paths of the program
	Install   string   // the package to install if none of the programs exists
	NeedsUser bool     // the server does not run as root, nor as a user without a name
	Args      []string
	Config    []byte // the content of the file ServerConfig
	// Setup is a shell script that runs in ServerData before each start, with the program as $0. It creates the data that an empty
	// server needs. It may be killed at any time, and must then be able to run again. "": the server needs no script.
	Setup string
	// Listen is the port of 127.0.0.1 where the server listens, in its own namespaces. A server without a port has a Unix socket
	// there instead, whose path is ListenSocket.
	Listen       int
	ListenSocket string
	// Call is the port of 127.0.0.1, in the server's namespaces, at which the server reaches the driver's socket; 0 means none.
	Call int
	// Port and Socket say where the app's clients connect to the server: a port of the loopback, or the path of a Unix socket.
	Port   int
	Socket string
	// SocketName is the file name that clients expect of the socket in any folder; "": they accept any name.
	SocketName string
	// Seeded says where the server's data are if a [ServerSource] made them; nil: Setup makes them.
	Seeded *Seeded
	// Hidden are folders that the server must not reach, for example those with the parent's own server. It finds empty ones there.
	Hidden []string
	// Usual are the folders where clients without a configured address look for the parent's server. In a fork, they find the
	// fork's server there.
	Usual []string
}

// Seeded says where a [ServerSource] made the data of servers: in a folder for each server, by its name. The servers run as the user
// whom the folders belong to.
type Seeded struct {
	Folder   string
	UID, GID int
}

// Parent is a database of a fork's parent. In the fork, a Server takes the place of the database's server.
type Parent struct {
	DSN  string
	Kind string // the result of ServerKind, or ""
}

// ServerDriver is a driver whose database is on a server. A fork has a server of its own for such a database.
type ServerDriver interface {
	// ServerKind describes those properties of the server and its user that a fork's own server must have too. The text contains
	// no secret.
	ServerKind(context.Context) (string, error)
	// Answers returns nil if the server answers and can be used.
	Answers(context.Context) error
}

// The paths of a Server's files, as the server sees them.
const (
	ServerData   = "/tmp/data"       // the folder where the server may write, and its working directory
	ServerConfig = "/tmp/etc/config" // a file that only the server's owner may read
)
