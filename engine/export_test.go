package engine

// RelayScript is what connects to a port in a container.
const RelayScript = relayScript

// StateDir returns the state folder of a project.
func StateDir(p *Project) string { return p.cfg.StateDir }
