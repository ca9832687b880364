package engine

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"mulligan/errs"
)

// Volume is a volume of the kind whose files are in a folder of the host.
type Volume struct {
	Name string
	Dir  string // the folder with its files
}

// Volume finds a volume by its own name or by the name that it has in the compose file. Only volumes that the engine keeps in a
// folder of its own are accepted: one with options may be any folder of the host, and none while no container uses it.
func (p *Project) Volume(ctx context.Context, name string) (Volume, error) {
	known := []string{name}
	if project, _, err := ParseName(p.cfg.Unit); err == nil && project != "" {
		known = []string{project + "_" + name, name}
	}
	if !isVolume(name) {
		return Volume{}, errs.New(errs.Invalid, "", "%.200q is not a volume's name", name).WithHint("docker volume ls shows the volumes")
	}
	for _, name := range known {
		dir, err := p.Place(ctx, name)
		if errs.KindOf(err) == errs.NotFound {
			continue
		}
		return Volume{name, dir}, err
	}
	return Volume{}, errs.New(errs.NotFound, "", "%s has no volume %s", p.e.socket, strings.Join(known, " or ")).
		WithHint("docker volume ls shows the volumes; docker compose up makes those of a project")
}

// Place returns the folder of the volume with the engine's name.
func (p *Project) Place(ctx context.Context, name string) (dir string, err error) {
	in, err := p.e.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return "", errs.New(errs.NotFound, "", "%s has no volume %s", p.e.socket, name).WithHint("docker compose up makes the volumes of a project anew; then restore again")
	}
	if err != nil {
		return "", p.e.failure("look at volume "+name, err)
	}
	switch v := in.Volume; {
	case v.Driver != "local" || len(v.Options) > 0:
		return "", errs.New(errs.Unsupported, "", "the files of volume %s are not kept by the engine (driver %s, %d options)", name, v.Driver, len(v.Options)).
			WithHint("mulligan captures volumes with the driver local and no options; leave this one out")
	case !filepath.IsAbs(v.Mountpoint) || filepath.Clean(v.Mountpoint) != v.Mountpoint || !strings.HasSuffix(v.Mountpoint, "/"+name+"/_data"):
		return "", errs.New(errs.Unsupported, "", "volume %s is at %q, which is not a folder of the engine's volumes", name, v.Mountpoint)
	default:
		return v.Mountpoint, nil
	}
}

// VolumeAt returns the volume in which a folder in a container lies, and the folder's path on the host. The whole folder must be in that volume,
// except files that the container has from elsewhere, like a configuration file.
func (p *Project) VolumeAt(ctx context.Context, name, path string) (v Volume, at string, err error) {
	in, err := p.e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if err != nil {
		return v, "", p.e.failure("look at container "+name, err)
	}
	best := -1
	for i, m := range in.Container.Mounts {
		if _, below := relative(m.Destination, path); below && (best < 0 || len(m.Destination) > len(in.Container.Mounts[best].Destination)) {
			best = i
		}
	}
	if best < 0 || in.Container.Mounts[best].Type != mount.TypeVolume {
		return v, "", errs.New(errs.Unsupported, "", "%s in container %s is not in a volume", path, name).WithHint("keep it in a volume")
	}
	for _, m := range in.Container.Mounts {
		if rel, below := relative(path, m.Destination); below && rel != "." && holdsFolder(m) {
			return v, "", errs.New(errs.Unsupported, "", "%s in container %s is not in the same volume as the rest of %s", m.Destination, name, path).
				WithHint("keep all of %s in one volume", path)
		}
	}
	v.Name = in.Container.Mounts[best].Name
	if v.Dir, err = p.Place(ctx, v.Name); err != nil {
		return v, "", err
	}
	rel, _ := relative(in.Container.Mounts[best].Destination, path)
	return v, filepath.Join(v.Dir, rel), nil
}

// holdsFolder reports whether a folder is mounted in a container, and not a single file.
func holdsFolder(m container.MountPoint) bool {
	if m.Type != mount.TypeBind {
		return true
	}
	info, err := os.Stat(m.Source)
	return err != nil || info.IsDir()
}

// relative returns a path relative to a folder, and whether it is that or below it.
func relative(folder, path string) (rel string, below bool) {
	rel, err := filepath.Rel(folder, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// Mounts returns the names of all containers that use a volume when they run.
func (p *Project) Mounts(ctx context.Context, volume string) (names []string, err error) {
	list, err := p.e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("volume", volume)})
	for _, c := range list.Items {
		if len(c.Names) > 0 {
			names = append(names, plainName(c.Names[0]))
		}
	}
	return names, p.e.failure("look who uses volume "+volume, err)
}

// Users returns the names of the running containers that use a volume: those of the project, and strangers.
func (p *Project) Users(ctx context.Context, volume string) (own, strangers []string, err error) {
	list, err := p.e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("volume", volume)})
	if err != nil {
		return nil, nil, p.e.failure("look who uses volume "+volume, err)
	}
	for _, c := range list.Items {
		if len(c.Names) == 0 || !slices.Contains([]string{"running", "paused", "restarting"}, string(c.State)) {
			continue
		}
		name := plainName(c.Names[0])
		if slices.ContainsFunc(p.cfg.Members, func(m Member) bool { return m.Name == name }) {
			own = append(own, name)
		} else {
			strangers = append(strangers, name)
		}
	}
	slices.Sort(own)
	slices.Sort(strangers)
	return own, strangers, nil
}
