package engine

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"mulligan/errs"
	"mulligan/failpoint"
)

// ForkLabel marks all that a compose tool makes of a fork's project; its value is the fork's id. The name of the project says nothing of who made what.
const ForkLabel = "mulligan.fork"

// Fork is the compose project of a fork.
type Fork struct {
	Engine    *Engine
	Project   string // its name
	ID        string // the value of ForkLabel
	Failpoint failpoint.Hook
}

// filter returns the filter for what has a label.
func filter(label, value string) client.Filters {
	return make(client.Filters).Add("label", label+"="+value)
}

// A thing is a container, a volume or a network.
type thing struct {
	kind, name string
	id         string // kind and what the engine knows it by, which for volumes is the name
	remove     func(ctx context.Context) error
}

// things lists what has a label: containers first, because they use the rest.
func (f Fork) things(ctx context.Context, label, value string) (list []thing, err error) {
	api := f.Engine.api
	containers, err := api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter(label, value)})
	if err != nil {
		return nil, f.Engine.failure("list containers", err)
	}
	for _, c := range containers.Items {
		list = append(list, thing{"container", plainName(slices.Concat(c.Names, []string{c.ID})[0]), "container " + c.ID, func(ctx context.Context) error {
			return f.removeContainer(ctx, c.ID, true)
		}})
	}
	volumes, err := api.VolumeList(ctx, client.VolumeListOptions{Filters: filter(label, value)})
	if err != nil {
		return nil, f.Engine.failure("list volumes", err)
	}
	for _, v := range volumes.Items {
		list = append(list, thing{"volume", v.Name, "volume " + v.Name, func(ctx context.Context) error {
			_, err := api.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
			return err
		}})
	}
	networks, err := api.NetworkList(ctx, client.NetworkListOptions{Filters: filter(label, value)})
	if err != nil {
		return nil, f.Engine.failure("list networks", err)
	}
	for _, n := range networks.Items {
		list = append(list, thing{"network", n.Name, "network " + n.ID, func(ctx context.Context) error {
			_, err := api.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
			return err
		}})
	}
	return list, nil
}

// removeContainer removes a container, if volumes is set with its volumes that have no names. Podman fails to do so at the moment when the container ends by itself.
func (f Fork) removeContainer(ctx context.Context, id string, volumes bool) (err error) {
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		_, err = f.Engine.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: volumes})
		if err == nil || errdefs.IsNotFound(err) || client.IsErrConnectionFailed(err) || wait > 2*time.Second {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// CheckFree returns an error if the engine has something of a project of this name already.
func (f Fork) CheckFree(ctx context.Context) error {
	list, err := f.things(ctx, projectLabel, f.Project)
	if err == nil && len(list) > 0 {
		err = errs.New(errs.Conflict, "", "there is a compose project %s already: %s %s", f.Project, list[0].kind, list[0].name).
			WithHint("give the fork another name with --name, or remove the project: docker compose -p %s down", f.Project)
	}
	return err
}

// Made lists what has the fork's label. Right after it was made nobody else can have used that label.
func (f Fork) Made(ctx context.Context) (ids []string, err error) {
	list, err := f.things(ctx, ForkLabel, f.ID)
	for _, t := range list {
		ids = append(ids, t.id)
	}
	return ids, err
}

// Remove removes what has the fork's label and is among those that were made, and nothing else; if made is empty, because it was not recorded yet, all
// that has the label. It may be repeated. What somebody else uses stays, and the error says so.
func (f Fork) Remove(ctx context.Context, made []string) error {
	list, err := f.things(ctx, ForkLabel, f.ID)
	if err != nil {
		return err
	}
	for _, t := range list {
		if len(made) > 0 && !slices.Contains(made, t.id) {
			continue
		}
		if err := f.Failpoint.At("fork: remove " + t.kind); err != nil {
			return err
		}
		if err := t.remove(ctx); err != nil && !errdefs.IsNotFound(err) {
			err = f.Engine.failure("remove "+t.kind+" "+t.name, err)
			if errs.HintOf(err) == "" {
				err = &errs.Error{Kind: errs.KindOf(err), Err: err, Hint: "a container that was not made with the fork uses it: docker compose -p " + f.Project + " down removes those of the project"}
			}
			return err
		}
	}
	return nil
}

// Check looks at what a compose tool has made, which has not run yet: the same services as in the blueprint, with the fork's label, volumes of their own
// and no ports of the host but free, and none of them can do more than the app's. workspace is the fork's folder. The result has the names of the fork's
// volumes by those of the app's.
func (f Fork) Check(ctx context.Context, of Blueprint, workspace string, free []int) (volumes map[string]string, err error) {
	members, err := f.Engine.labelled(ctx, f.Project)
	if err != nil {
		return nil, err
	}
	p := f.Engine.Project(ProjectConfig{Unit: composePrefix + f.Project, Members: members})
	list, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	count, volumes := map[string]int{}, map[string]string{}
	for i := range list {
		c := &list[i]
		if c.gone || c.now.Config.Labels[ForkLabel] != f.ID {
			return nil, errs.New(errs.Conflict, "", "container %s says that it is of compose project %s, and was not made for the fork", c.Name, f.Project).WithHint("remove it")
		}
		s, ok := of.service(c.service())
		if !ok {
			return nil, errs.New(errs.Conflict, "", "the service %s has no container in the app", c.service()).
				WithHint("the compose file of the checkpoint is another one; begin with a newer checkpoint")
		}
		if err := s.like(c, workspace, func(volume string) error { return f.owns(ctx, p, c.Name, volume) }, free); err != nil {
			return nil, err
		}
		count[s.Name]++
		for _, m := range c.now.Mounts {
			if m.Type == mount.TypeVolume && s.Volumes[m.Destination] != "" {
				volumes[s.Volumes[m.Destination]] = m.Name
			}
		}
	}
	for _, s := range of.Services {
		if count[s.Name] != len(s.Containers) {
			return nil, errs.New(errs.Failed, "", "the compose tool made %d containers of the service %s, and the app has %d", count[s.Name], s.Name, len(s.Containers)).
				WithHint("docker compose up -d --scale %s=%d may fail in the same way", s.Name, len(s.Containers))
		}
	}
	return volumes, nil
}

// Settle has Podman do now what it does when a volume is first used: give the volume's folder the owner that it has in the image. Later, that would
// undo what was restored. To that end, a container that does nothing uses the volumes of each container of the fork. Docker has done it already.
func (f Fork) Settle(ctx context.Context) error {
	about, err := f.Engine.About(ctx)
	if err != nil || about.Name != "Podman" {
		return err
	}
	api := f.Engine.api
	containers, err := api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter(ForkLabel, f.ID)})
	if err != nil {
		return f.Engine.failure("list containers", err)
	}
	for _, c := range containers.Items {
		of, err := api.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
		if err != nil {
			return f.Engine.failure("look at container "+c.ID, err)
		}
		if !slices.ContainsFunc(of.Container.Mounts, func(m container.MountPoint) bool { return m.Type == mount.TypeVolume }) || of.Container.Config == nil {
			continue
		}
		if err := f.Failpoint.At("fork: settle volumes"); err != nil {
			return err
		}
		made, err := api.ContainerCreate(ctx, client.ContainerCreateOptions{
			Name: f.Project + "-settles",
			Config: &container.Config{
				Image: of.Container.Image, User: of.Container.Config.User, Entrypoint: []string{"/bin/true"}, Labels: map[string]string{ForkLabel: f.ID},
				Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
			},
			HostConfig: &container.HostConfig{
				NetworkMode: "none", VolumesFrom: []string{c.ID}, ReadonlyRootfs: true, CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges", "label=disable"},
			},
		})
		if err != nil {
			return f.Engine.failure("make a container that uses the volumes of the fork", err)
		}
		_, _ = api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}) // the image may have no such program: the volumes were used all the same
		if err := f.removeContainer(ctx, made.ID, false); err != nil && !errdefs.IsNotFound(err) {
			return f.Engine.failure("remove container "+f.Project+"-settles", err)
		}
	}
	return nil
}

// owns returns an error unless a volume was made for the fork.
func (f Fork) owns(ctx context.Context, p *Project, user, volume string) error {
	if _, err := p.Place(ctx, volume); err != nil {
		return err
	}
	in, err := f.Engine.api.VolumeInspect(ctx, volume, client.VolumeInspectOptions{})
	if err != nil {
		return f.Engine.failure("look at volume "+volume, err)
	}
	others, err := p.Mounts(ctx, volume)
	if err != nil {
		return err
	}
	if in.Volume.Labels[ForkLabel] == f.ID || isAnonymous(volume) && len(others) == 1 && others[0] == user {
		return nil
	}
	return errs.New(errs.Conflict, "", "container %s would use the volume %s, which is not the fork's own", user, volume).
		WithHint("name the volume below volumes: in the compose file")
}

// StartServers starts those containers that serve databases and waits until they are healthy. The others stay as they are.
func (p *Project) StartServers(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, err := p.look(ctx)
	if err == nil {
		err = p.whole(list)
	}
	if err != nil {
		return err
	}
	var n note
	for _, f := range list {
		if f.Stays {
			n.Ran = append(n.Ran, f.Name)
		}
	}
	return p.start(ctx, list, n)
}

// MayUse reports whether a name can be that of a compose project.
func MayUse(project string) bool {
	return nameSyntax.MatchString(project) && strings.ToLower(project) == project && !strings.Contains(project, ".")
}
