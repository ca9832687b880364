package engine

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mulligan/errs"
)

// The labels that compose tools give to containers.
const (
	projectLabel = "com.docker.compose.project"
	serviceLabel = "com.docker.compose.service"
	dependsLabel = "com.docker.compose.depends_on" // "db:service_healthy:false,cache:service_started:false"
	oneoffLabel  = "com.docker.compose.oneoff"     // of `compose run`
)

// Member is a container that belongs to a project.
type Member struct {
	Name string `json:"name"`
	ID   string `json:"id"` // which container had the name when the project was configured
	// Service is what a compose file calls it; "" for one that is of no compose project.
	Service string `json:"service,omitempty"`
	// Stays says that a stop leaves the container as it is, because something else needs it meanwhile. A start starts it if it is down.
	Stays bool `json:"stays"`
}

// Ports returns the ports of a container by the ports of the host that lead to them.
func (e *Engine) Ports(ctx context.Context, name string) (ports map[int]int, err error) {
	in, err := e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if err != nil {
		return nil, e.failure("look at container "+name, err)
	}
	ports = map[int]int{}
	if in.Container.HostConfig == nil {
		return ports, nil
	}
	for inside, list := range in.Container.HostConfig.PortBindings { // also of one that is stopped
		for _, b := range list {
			if port, err := strconv.Atoi(b.HostPort); err == nil && port > 0 {
				ports[port] = int(inside.Num())
			}
		}
	}
	return ports, nil
}

// Members finds the containers of a project, or the one container, that a unit's name stands for.
func (e *Engine) Members(ctx context.Context, unit string) ([]Member, error) {
	project, name, err := ParseName(unit)
	if err != nil {
		return nil, err
	}
	if name != "" {
		in, err := e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		if errdefs.IsNotFound(err) {
			return nil, errs.New(errs.NotFound, "", "%s has no container %s", e.socket, name).WithHint("docker ps -a shows the containers")
		}
		if err != nil {
			return nil, e.failure("look for container "+name, err)
		}
		m := Member{Name: plainName(in.Container.Name), ID: in.Container.ID}
		if in.Container.Config != nil {
			m.Service = in.Container.Config.Labels[serviceLabel]
		}
		return []Member{m}, nil
	}
	list, err := e.labelled(ctx, project)
	if err == nil && len(list) == 0 {
		err = errs.New(errs.NotFound, "", "%s has no containers of a compose project %s", e.socket, project).
			WithHint("make them with docker compose up -d; docker compose ls -a shows the projects")
	}
	return list, err
}

// labelled returns the containers whose labels say that they are of a project, by name. Those of `compose run` are left out.
func (e *Engine) labelled(ctx context.Context, project string) (members []Member, err error) {
	list, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", projectLabel+"="+project)})
	if err != nil {
		return nil, e.failure("list the containers of compose project "+project, err)
	}
	for _, c := range list.Items {
		if len(c.Names) > 0 && !strings.EqualFold(c.Labels[oneoffLabel], "true") {
			members = append(members, Member{Name: plainName(c.Names[0]), ID: c.ID, Service: c.Labels[serviceLabel]})
		}
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return members, nil
}

// plainName returns a container's name without the slash that the API puts in front.
func plainName(name string) string { return strings.TrimPrefix(name, "/") }

// found is a member as the engine describes it at present.
type found struct {
	Member
	now    container.InspectResponse
	gone   bool   // there is no container of this name
	called string // how the recorded container is called instead, if it was renamed
	remade bool   // the container of this name is another one than when the project was configured
	depth  int    // how many containers must be started one after the other before this one
}

func (f *found) service() string { return f.now.Config.Labels[serviceLabel] }

// look asks the engine for the project's members, in the order in which they are started.
func (p *Project) look(ctx context.Context) ([]found, error) {
	var list []found
	for _, m := range p.cfg.Members {
		in, err := p.e.api.ContainerInspect(ctx, m.Name, client.ContainerInspectOptions{})
		f := found{Member: m, now: in.Container}
		switch {
		case errdefs.IsNotFound(err):
			f.gone = true
			if in, err := p.e.api.ContainerInspect(ctx, m.ID, client.ContainerInspectOptions{}); m.ID != "" && err == nil {
				f.called = plainName(in.Container.Name)
			}
		case err != nil:
			return nil, p.e.failure("look at container "+m.Name, err)
		case f.now.State == nil || f.now.Config == nil || f.now.HostConfig == nil:
			return nil, errs.New(errs.Failed, "", "the engine does not describe container %s", m.Name)
		default:
			f.remade = f.now.ID != m.ID
		}
		list = append(list, f)
	}
	setDepths(list)
	slices.SortStableFunc(list, func(a, b found) int { return cmp.Compare(a.depth, b.depth) })
	return list, nil
}

// setDepths orders the members by their depends_on labels. Older compose tools write none: then databases are started first.
func setDepths(list []found) {
	depth, labelled := map[string]int{}, false
	for i := range list {
		labelled = labelled || !list[i].gone && list[i].now.Config.Labels[dependsLabel] != ""
	}
	for range list { // a circle ends too: labels are anybody's
		for i := range list {
			if f := &list[i]; !f.gone {
				for _, n := range needs(f) {
					depth[f.service()] = min(max(depth[f.service()], depth[n.service]+1), len(list))
				}
			}
		}
	}
	for i := range list {
		switch f := &list[i]; {
		case f.gone:
		case labelled:
			f.depth = depth[f.service()]
		case !isDatabase(f.now.Config.Image):
			f.depth = 1
		}
	}
}

// need is a service that must be up before another one is started.
type need struct {
	service string
	healthy bool // and healthy
	done    bool // or rather have ended well
}

func needs(f *found) (list []need) {
	for text := range strings.SplitSeq(f.now.Config.Labels[dependsLabel], ",") {
		if part := strings.Split(text, ":"); part[0] != "" {
			n := need{service: part[0]}
			if len(part) > 1 {
				n.healthy, n.done = part[1] == "service_healthy", part[1] == "service_completed_successfully"
			}
			list = append(list, n)
		}
	}
	return list
}

// isDatabase reports whether an image is probably that of a database server.
func isDatabase(image string) bool {
	for _, word := range []string{"postgres", "postgis", "mysql", "mariadb", "redis", "valkey", "mongo"} {
		if strings.Contains(image, word) {
			return true
		}
	}
	return false
}
