package engine

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"mulligan/errs"
)

// Further labels that compose tools give to containers.
const (
	filesLabel   = "com.docker.compose.project.config_files" // with commas between them; of some tools relative to the folder
	folderLabel  = "com.docker.compose.project.working_dir"
	envFileLabel = "com.docker.compose.project.environment_file"
	versionLabel = "com.docker.compose.version"
	podmanLabel  = "io.podman.compose.project" // of podman-compose
)

// PodmanCompose is the compose tool that works through the program podman, and so with the engine of who runs it.
const PodmanCompose = "podman-compose"

// Blueprint is how a compose tool made a project, as far as that must be known to have a second project made. It comes from the labels of
// containers: it says where to look, and allows nothing.
type Blueprint struct {
	Tool     []string  // the tool's command
	Files    []string  // the compose files, as absolute paths
	EnvFiles []string  // files with variables for them that were named to the tool, likewise
	Services []Service // by name
}

// Service is a service of a project, as its containers are.
type Service struct {
	Name       string
	Containers []string // their names
	Image      string   // by its name
	Ports      []Port   // that are published

	reach reach
	binds map[string]bool // what it mounts of the host outside of the workspace, and whether it can write there
	// Volumes has the names of its volumes, by where they are in the container.
	Volumes map[string]string
}

// Port is a port of a container that a port of the host leads to.
type Port struct {
	Host, Inside int
	Proto        string // "tcp", "udp"
}

// reach is what a container may do beyond itself.
type reach struct {
	Privileged                                            bool
	CapAdd, SecurityOpt, GroupAdd, Devices, Rules, Masked []string
	Pid, IPC, UTS, Userns, Network, Parent, Runtime       string
}

func reachOf(h *container.HostConfig) reach {
	r := reach{
		Privileged: h.Privileged, CapAdd: slices.Sorted(slices.Values(h.CapAdd)), SecurityOpt: slices.Sorted(slices.Values(h.SecurityOpt)), GroupAdd: slices.Sorted(slices.Values(h.GroupAdd)), Rules: slices.Sorted(slices.Values(h.DeviceCgroupRules)),
		Masked: slices.Sorted(slices.Values(slices.Concat(h.MaskedPaths, h.ReadonlyPaths))), Pid: kindOf(string(h.PidMode)), IPC: kindOf(string(h.IpcMode)), UTS: kindOf(string(h.UTSMode)),
		Userns: string(h.UsernsMode), Parent: h.CgroupParent, Runtime: h.Runtime,
	}
	for _, d := range h.Devices {
		r.Devices = append(r.Devices, fmt.Sprint(d))
	}
	for _, d := range h.DeviceRequests {
		r.Devices = append(r.Devices, fmt.Sprint(d))
	}
	r.Devices = slices.Sorted(slices.Values(r.Devices))
	if mode := kindOf(string(h.NetworkMode)); mode == "host" || mode == "container" { // else it is one of the project's networks
		r.Network = mode
	}
	return r
}

// kindOf returns a mode without the container that it names.
func kindOf(mode string) string {
	kind, _, _ := strings.Cut(mode, ":")
	return kind
}

// ports returns the ports of a container that ports of the host lead to.
func ports(c *found) (list []Port) {
	for inside, all := range c.now.HostConfig.PortBindings { // also of one that is stopped
		for _, b := range all {
			if host, err := strconv.Atoi(b.HostPort); err == nil && host > 0 {
				list = append(list, Port{host, int(inside.Num()), string(inside.Proto())})
			}
		}
	}
	slices.SortFunc(list, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Inside, b.Inside), strings.Compare(a.Proto, b.Proto))
	})
	return slices.Compact(list) // one for each address of the host
}

// Blueprint finds out how the project was made. It refuses one of which a second one would not be apart.
func (p *Project) Blueprint(ctx context.Context, workspace string) (b Blueprint, err error) {
	project, _, err := ParseName(p.cfg.Unit)
	if err != nil {
		return b, err
	}
	if project == "" {
		return b, errs.New(errs.Unsupported, "", "%s is one container, and forks are made of compose projects", p.cfg.Unit).
			WithHint("put it into a compose file, and name the project: `mulligan app set unit=compose:PROJECT`")
	}
	list, err := p.look(ctx)
	if err == nil {
		err = p.whole(list)
	}
	if err != nil {
		return b, err
	}
	slices.SortStableFunc(list, func(x, y found) int { return strings.Compare(x.service(), y.service()) })
	for i := range list {
		f := &list[i]
		labels := f.now.Config.Labels
		if labels[projectLabel] != project || f.service() == "" {
			return b, errs.New(errs.Unsupported, "", "container %s was not made by a compose tool, and a fork is made by one", f.Name).
				WithHint("take it out of the project, and then: `mulligan app set unit=%s`", p.cfg.Unit)
		}
		if b.Files == nil && labels[filesLabel] != "" {
			b.Tool = toolOf(labels)
			b.Files, b.EnvFiles = below(labels[folderLabel], labels[filesLabel]), below(labels[folderLabel], labels[envFileLabel])
		}
		if err := p.apart(ctx, f, workspace); err != nil {
			return b, err
		}
		s := Service{f.service(), []string{f.Name}, f.now.Config.Image, ports(f), reachOf(f.now.HostConfig), map[string]bool{}, map[string]string{}}
		for _, m := range f.now.Mounts {
			switch m.Type {
			case mount.TypeBind:
				if _, inside := relative(workspace, m.Source); !inside { // a fork has its own there
					s.binds[m.Source] = s.binds[m.Source] || m.RW
				}
			case mount.TypeVolume:
				s.Volumes[m.Destination] = m.Name
			}
		}
		if n := len(b.Services); n > 0 && b.Services[n-1].Name == s.Name {
			b.Services[n-1].Containers = append(b.Services[n-1].Containers, f.Name)
			if len(s.Ports) > 0 {
				return b, errs.New(errs.Unsupported, "", "the service %s has several containers with ports of the host, and forks of such services are not supported", s.Name).
					WithHint("let one container have the port, as with a proxy before the others")
			}
			continue
		}
		b.Services = append(b.Services, s)
	}
	if b.Files == nil {
		return b, errs.New(errs.Unsupported, "", "the containers of %s do not say which compose file they were made of", p.cfg.Unit).
			WithHint("make them anew with the compose tool: docker compose up -d")
	}
	return b, nil
}

// apart refuses a container whose like in a fork would not be apart from it.
func (p *Project) apart(ctx context.Context, f *found, workspace string) error {
	if kindOf(string(f.now.HostConfig.NetworkMode)) == "host" {
		return errs.New(errs.Unsupported, "", "container %s has the host's network, and a fork's would take the same ports", f.Name).
			WithHint("take network_mode: host out of the compose file, and publish its ports")
	}
	for _, m := range f.now.Mounts {
		switch m.Type {
		case mount.TypeVolume:
			if _, err := p.Place(ctx, m.Name); err != nil {
				return errs.Wrap(errs.Unsupported, "a fork cannot have a volume like that of container "+f.Name, err)
			}
		case mount.TypeBind:
			_, inside := relative(workspace, m.Source)
			if !inside && m.RW && !strings.HasSuffix(m.Source, ".sock") {
				return errs.New(errs.Unsupported, "", "container %s writes to the folder %s outside of the workspace, and a fork's would do so too", f.Name, m.Source).
					WithHint("move it into the workspace or into a volume, or mount it with :ro")
			}
		}
	}
	return nil
}

// toolOf returns the command of the compose tool that gave a container its labels.
func toolOf(labels map[string]string) []string {
	switch {
	case labels[podmanLabel] != "":
		return []string{PodmanCompose}
	case strings.HasPrefix(labels[versionLabel], "1."):
		return []string{"docker-compose"}
	}
	return []string{"docker", "compose"}
}

// below returns the paths in a label, which may be relative to a folder.
func below(folder, text string) (paths []string) {
	for path := range strings.SplitSeq(text, ",") {
		if path == "" {
			continue
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(folder, path)
		}
		paths = append(paths, filepath.Clean(path))
	}
	return paths
}

// Serving returns the name of the service of a container.
func (b Blueprint) Serving(container string) string {
	for _, s := range b.Services {
		if slices.Contains(s.Containers, container) {
			return s.Name
		}
	}
	return ""
}

// service returns the service of this name.
func (b Blueprint) service(name string) (s Service, ok bool) {
	at := slices.IndexFunc(b.Services, func(s Service) bool { return s.Name == name })
	if at < 0 {
		return s, false
	}
	return b.Services[at], true
}

// like refuses a container that may do more than those of the same service in the project of the blueprint, or not the same. It may use the folder
// workspace, volumes for which mine returns nil, and these ports of the host.
func (s Service) like(f *found, workspace string, mine func(volume string) error, free []int) error {
	unlike := func(what string) error {
		return errs.New(errs.Denied, "", "container %s would %s, unlike that of the app", f.Name, what).
			WithHint("its compose file says something else than that of the app's containers: make those anew, or begin with another checkpoint")
	}
	if got := reachOf(f.now.HostConfig); !reflect.DeepEqual(got, s.reach) {
		return unlike("have other rights")
	}
	for _, p := range ports(f) {
		if !slices.Contains(free, p.Host) {
			return unlike("take port " + strconv.Itoa(p.Host) + " of the host")
		}
	}
	for _, m := range f.now.Mounts {
		switch m.Type {
		case mount.TypeTmpfs:
		case mount.TypeVolume:
			if err := mine(m.Name); err != nil {
				return err
			}
		case mount.TypeBind:
			_, inside := relative(workspace, m.Source)
			write, known := s.binds[m.Source]
			if !inside && (!known || m.RW && !write) {
				return unlike("mount " + m.Source)
			}
		default:
			return unlike("have a mount of type " + string(m.Type))
		}
	}
	return nil
}
