package redis

import "mulligan/snap/database"

// plan is the durable record of a switch.
type plan struct {
	database.Plan
	Lead *lead // set while the server may be replicating from us
}

// lead holds the server's settings to put back. MasterAuth is the server's own password for a master,
// usually none.
type lead struct {
	Host, Port       string // the address of our master
	User, MasterAuth string
}
