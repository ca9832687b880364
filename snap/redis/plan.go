package redis

import "mulligan/snap/database"

// plan is what is kept of a switch.
type plan struct {
	database.Plan
	Lead *lead // set while the server may be following
}

// lead is what the server's settings are to be put back from. The password is
// one that the server had for a master of its own; mostly there is none.
type lead struct {
	Host, Port       string // where it was told to find its master
	User, MasterAuth string
}
