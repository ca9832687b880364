package engine

// StateDir returns the state folder of a project.
func StateDir(p *Project) string { return p.cfg.StateDir }
