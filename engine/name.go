package engine

import (
	"fmt"
	"regexp"
	"strings"

	"mulligan/errs"
)

// The prefixes of names of units that are containers.
const (
	composePrefix   = "compose:"
	containerPrefix = "container:"
)

// nameSyntax is what Docker accepts as the name of a container or volume; names of compose projects are a part of it.
var nameSyntax = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,200}$`)

// Names reports whether a unit's name is that of containers: "compose:PROJECT" or "container:NAME".
func Names(unit string) bool {
	return strings.HasPrefix(unit, composePrefix) || strings.HasPrefix(unit, containerPrefix)
}

// Sockets lists where the sockets of container engines usually are: the host's, and those of a user's own engines.
func Sockets(uid int) []string {
	own := fmt.Sprintf("/run/user/%d", uid)
	return []string{"/run/docker.sock", "/run/podman/podman.sock", own + "/docker.sock", own + "/podman/podman.sock"}
}

// ParseName splits a unit's name into the name of a compose project or of a container; the other one is "".
func ParseName(unit string) (project, container string, err error) {
	const op = "parse unit name"
	name, compose := strings.CutPrefix(unit, composePrefix)
	if !compose {
		name = strings.TrimPrefix(unit, containerPrefix)
	}
	if !Names(unit) || !nameSyntax.MatchString(name) {
		return "", "", errs.New(errs.Invalid, op, "%.200q names no containers", unit).
			WithHint("write compose:PROJECT with the name that `docker compose ls` shows, or container:NAME")
	}
	if compose {
		return name, "", nil
	}
	return "", name, nil
}

// isVolume reports whether an engine would accept name as the name of a volume.
func isVolume(name string) bool { return nameSyntax.MatchString(name) }
