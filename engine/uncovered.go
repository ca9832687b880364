package engine

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

// Uncovered is a part of a container that is not captured.
type Uncovered struct {
	What, Remedy string // a whole sentence, and what to do about it
}

// Uncovered returns what is not captured of the project's containers if these volumes are, by the engine's names, and the folder workspace
// with all below it. The volumes of containers that stay up are those of databases, which are captured through their servers.
func (p *Project) Uncovered(ctx context.Context, volumes []string, workspace string) (all []Uncovered, err error) {
	list, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{} // volumes that several containers use
	for _, f := range list {
		if f.gone {
			continue
		}
		for _, m := range f.now.Mounts {
			if f.Stays && m.Type == mount.TypeVolume || slices.Contains(volumes, m.Name) && m.Type == mount.TypeVolume || !m.RW || seen[m.Name] {
				continue
			}
			seen[m.Name] = m.Name != ""
			if u := uncoveredMount(f.Name, string(m.Type), m.Name, m.Source, m.Destination, workspace); u.What != "" {
				all = append(all, u)
			}
		}
		for at := range f.now.HostConfig.Tmpfs {
			if !slices.ContainsFunc(f.now.Mounts, func(m container.MountPoint) bool { return m.Destination == at }) {
				all = append(all, uncoveredMount(f.Name, string(mount.TypeTmpfs), "", "", at, workspace))
			}
		}
		if u := p.ownFiles(ctx, &f); u.What != "" {
			all = append(all, u)
		}
	}
	return all, nil
}

func uncoveredMount(of, kind, volume, source, at, workspace string) Uncovered {
	switch mount.Type(kind) {
	case mount.TypeVolume:
		if isAnonymous(volume) {
			return Uncovered{fmt.Sprintf("The volume without a name at %s in container %s is not captured.", at, of),
				"give it a name in the compose file, or name it by its id: `mulligan app set volumes=…," + volume + "`"}
		}
		return Uncovered{fmt.Sprintf("The volume %s, at %s in container %s, is not captured.", volume, at, of), "name it, too: `mulligan app set volumes=…," + volume + "`"}
	case mount.TypeBind:
		if source == workspace || strings.HasPrefix(source, workspace+"/") || strings.HasSuffix(source, ".sock") {
			return Uncovered{}
		}
		return Uncovered{fmt.Sprintf("The folder %s, at %s in container %s, lies outside of the workspace and is not captured.", source, at, of),
			"move it into the workspace, or keep its files in a volume"}
	case mount.TypeTmpfs:
		return Uncovered{fmt.Sprintf("The files at %s in container %s are in memory, and are gone after each stop.", at, of), "keep in a volume what should last"}
	}
	return Uncovered{fmt.Sprintf("The %s at %s in container %s is not captured.", kind, at, of), "keep in a volume what should last"}
}

// isAnonymous reports whether the engine made up a volume's name.
func isAnonymous(volume string) bool {
	return len(volume) == 64 && strings.Trim(volume, "0123456789abcdef") == ""
}

// engines write these files themselves, and programs expect to lose what is in these folders.
var passing = []string{"/run", "/var/run", "/tmp", "/var/tmp", "/dev", "/proc", "/sys", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab"}

// ownFiles names the files that a container has changed outside of its mounts. An engine that cannot tell is not asked for more.
func (p *Project) ownFiles(ctx context.Context, f *found) Uncovered {
	diff, err := p.e.api.ContainerDiff(ctx, f.Name, client.ContainerDiffOptions{})
	if err != nil {
		return Uncovered{}
	}
	skipped := slices.Clone(passing)
	for _, m := range f.now.Mounts {
		skipped = append(skipped, m.Destination)
	}
	for at := range f.now.HostConfig.Tmpfs {
		skipped = append(skipped, at)
	}
	var paths []string
	for _, c := range diff.Changes {
		if !slices.ContainsFunc(skipped, func(s string) bool {
			return c.Path == s || strings.HasPrefix(c.Path, s+"/") || strings.HasPrefix(s, c.Path+"/") // also what leads there
		}) {
			paths = append(paths, path.Clean(c.Path))
		}
	}
	slices.Sort(paths)
	paths = slices.Compact(paths)
	var leaves []string // a folder is named by what changed in it
	for i, name := range paths {
		if i+1 == len(paths) || !strings.HasPrefix(paths[i+1], name+"/") {
			leaves = append(leaves, name)
		}
	}
	if len(leaves) == 0 {
		return Uncovered{}
	}
	const shown = 3
	words := strings.Join(leaves[:min(shown, len(leaves))], ", ")
	if more := len(leaves) - shown; more > 0 {
		words += fmt.Sprintf(" and %d more", more)
	}
	return Uncovered{fmt.Sprintf("What container %s wrote into its own file system is not captured: %s.", f.Name, words), "keep in a volume, or in the workspace, what should last"}
}
