package snap

// Server says how to run a database server for one app alone, as each fork of an app has one. The server runs with the rights of the
// app's owner, in namespaces of its own, without any network but their loopback. A driver's package makes it from a DSN.
type Server struct {
	Programs []string // names of the program, any of which will do
	Args     []string
	Config   []byte // the content of the file ServerConfig
	Listen   int    // the port of 127.0.0.1 where the server listens, in its own namespaces
	// Call is a port of 127.0.0.1 in the server's namespaces, where it reaches the driver's socket; 0: it has no need to.
	Call int
	// Port and Socket are where the app's clients expect the server: a port of the loopback, or the path of a Unix socket.
	Port   int
	Socket string
}

// The places of a Server's files, as it sees them.
const (
	ServerData   = "/tmp/data"       // the folder where it may write; it is where it starts
	ServerConfig = "/tmp/etc/config" // a file that only the server's owner may read
)
