package redis

import "mulligan/snap/database"

// plan is the durable record of a switch.
type plan struct {
	database.Plan
	Lead *lead // set while the server may replicate from the driver
}

// lead has the server's settings to be restored. MasterAuth is the server's password for its own master, usually "".
type lead struct {
	Host, Port       string // address of the driver as master
	User, MasterAuth string
}
