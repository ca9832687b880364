package snap

// Server says how to run a database server for one app alone, for example for a fork. The server runs with the rights of the
// app's owner, in namespaces of its own, whose only network is their loopback. A driver's package makes a Server from a DSN.
type Server struct {
	Programs []string // alternative names of the program
	Args     []string
	Config   []byte // the content of the file ServerConfig
	Listen   int    // the port of 127.0.0.1 where the server listens, in its own namespaces
	// Call is the port of 127.0.0.1, in the server's namespaces, at which the server reaches the driver's socket; 0 means none.
	Call int
	// Port and Socket say where the app's clients connect to the server: a port of the loopback, or the path of a Unix socket.
	Port   int
	Socket string
}

// The paths of a Server's files, as the server sees them.
const (
	ServerData   = "/tmp/data"       // the folder where the server may write, and its working directory
	ServerConfig = "/tmp/etc/config" // a file that only the server's owner may read
)
