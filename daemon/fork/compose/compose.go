// Package compose writes the compose files of a fork's project, from those in the fork's folder. They are read, parsed and written with the rights
// of the app's owner, beneath that folder, in a process of the owner's: what is in them is anybody's word.
package compose

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/beneath"
)

// Project is what the files of a fork's project are to say.
type Project struct {
	Folder   string // the fork's
	Parent   string // the app's workspace: mounts from there become mounts from Folder
	Files    []string
	Label    string // that all that is made gets
	ID       string // its value
	Services []Service
	// OneNetwork: the tool adds services that name no network to the only one that there is, instead of to the one called default.
	OneNetwork bool
}

// Service is what a service of the project is made of, as that of the app is.
type Service struct {
	Name  string
	Image string
	Ports []string // as in 127.0.0.1:8080:80/tcp
}

// maxFile bounds a compose file, in bytes.
const maxFile = 1 << 20

// Write writes the files of the project beside those in Files, and returns their paths relative to the folder. The caller removes them.
func Write(ctx context.Context, user privsep.User, p Project) (names []string, err error) {
	return write.Call(ctx, user, p)
}

var write = privsep.Define("compose.write", func(ctx context.Context, p Project) (names []string, err error) {
	root, err := beneath.Open(p.Folder)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var texts [][]byte
	for _, file := range p.Files {
		text, _, err := root.ReadFile(file, maxFile)
		if err != nil {
			return nil, unusable(file, err)
		}
		texts = append(texts, text)
	}
	if texts, err = rewrite(texts, p); err != nil {
		return nil, err
	}
	for i, file := range p.Files {
		dir, _, err := root.Parent(file)
		if err != nil {
			return names, err
		}
		name := fmt.Sprintf(".mulligan-%d-%s.yml", i, rand.Text())
		if err := writeNew(dir, name, texts[i]); err != nil {
			return names, errs.Also(unusable(file, err), remove(root, names))
		}
		names = append(names, path.Join(path.Dir(file), name))
	}
	return names, nil
}).Within(time.Minute) // what aliases make of a text may be large

// Remove removes files that Write wrote. Those that are gone are left out.
func Remove(ctx context.Context, user privsep.User, folder string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	_, err := removeAll.Call(ctx, user, written{folder, names})
	return err
}

type written struct {
	Folder string
	Names  []string
}

var removeAll = privsep.Define("compose.remove", func(ctx context.Context, w written) (done bool, err error) {
	root, err := beneath.Open(w.Folder)
	if err != nil {
		return false, err
	}
	defer root.Close()
	return true, remove(root, w.Names)
})

func remove(root *beneath.Root, names []string) (err error) {
	for _, name := range names {
		dir, base, e := root.Parent(name)
		if e == nil {
			e = errs.Also(unix.Unlinkat(dir.FD(), base, 0), dir.Close())
		}
		if e != nil && !errors.Is(e, unix.ENOENT) {
			err = errs.Also(err, e)
		}
	}
	return err
}

func unusable(file string, err error) error {
	return (&errs.Error{Kind: errs.Invalid, Message: "the compose file " + file + " of the fork cannot be used", Err: err}).
		WithHint("docker compose config in the app's folder says more; or begin with another checkpoint")
}

// writeNew writes a file that must not exist, and closes the folder.
func writeNew(dir *beneath.Root, name string, text []byte) (err error) {
	defer dir.Close()
	f, err := dir.OpenFile(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errs.Also(err, f.Close()); err != nil {
		return errs.Also(err, unix.Unlinkat(dir.FD(), name, 0))
	}
	return nil
}

// rewrite returns the texts of compose files with what makes a project of its own of them: no fixed names, the fork's ports and label, and images
// instead of recipes to build them.
func rewrite(texts [][]byte, p Project) (out [][]byte, err error) {
	var all []map[string]any
	for i, text := range texts {
		m, err := parse(text)
		if err != nil {
			return nil, unusable(p.Files[i], err)
		}
		all = append(all, m)
	}
	done := map[string]bool{} // the services that have their ports and image
	for _, m := range all {
		delete(m, "name")
		if version, ok := m["version"]; ok && slices.Contains([]string{"2", "2.0"}, fmt.Sprint(version)) {
			m["version"] = "2.1" // the first with labels for networks
		}
		for name, s := range entries(m, "services") {
			p.service(name, s, done)
		}
		for _, kind := range []string{"volumes", "networks"} {
			for _, e := range entries(m, kind) {
				delete(e, "name")
				delete(e, "external")
				delete(e, "ipam") // its addresses are the app's
				p.mark(e)
			}
		}
	}
	for _, s := range p.Services {
		if !done[s.Name] {
			return nil, errs.New(errs.Unsupported, "", "the service %s is in none of the compose files %s", s.Name, strings.Join(p.Files, ", ")).
				WithHint("begin with a checkpoint that was made with the present compose file; include: is not supported for forks")
		}
	}
	p.network(all)
	for _, m := range all {
		text, err := yaml.Marshal(m)
		if err != nil {
			return nil, errs.Wrap(errs.Internal, "write the compose file of a fork", err)
		}
		out = append(out, text)
	}
	return out, nil
}

// parse reads a compose file.
func parse(text []byte) (m map[string]any, err error) {
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		return nil, err
	}
	if tag := ownTag(&n); tag != "" {
		return nil, errs.New(errs.Unsupported, "", "line %s has a tag of the compose tool's own, which forks do not support", tag)
	}
	if err := n.Decode(&m); err != nil { // it refuses what aliases would make too large
		return nil, err
	}
	if m == nil {
		m = map[string]any{}
	}
	return m, nil
}

// ownTag returns the line and the text of the first tag that is not one of YAML's.
func ownTag(n *yaml.Node) string {
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		return fmt.Sprintf("%d (%s)", n.Line, n.Tag)
	}
	for _, c := range n.Content {
		if tag := ownTag(c); tag != "" {
			return tag
		}
	}
	return ""
}

// entries returns what a part of a compose file has below it, by name, and puts a mapping in the place of each empty entry.
func entries(m map[string]any, part string) map[string]map[string]any {
	list := map[string]map[string]any{}
	all, ok := m[part].(map[string]any)
	if !ok {
		return list
	}
	for name, e := range all {
		one, ok := e.(map[string]any)
		if !ok && e != nil {
			continue // the tool says what is wrong with it
		}
		if one == nil {
			one = map[string]any{}
		}
		one = maps.Clone(one) // it may be another entry's, too, by an alias
		all[name], list[name] = one, one
	}
	return list
}

// mark adds the fork's label to an entry.
func (p Project) mark(e map[string]any) {
	switch labels := e["labels"].(type) {
	case []any:
		e["labels"] = append(slices.Clone(labels), p.Label+"="+p.ID)
	case map[string]any:
		labels = maps.Clone(labels)
		labels[p.Label] = p.ID
		e["labels"] = labels
	default:
		e["labels"] = map[string]any{p.Label: p.ID}
	}
}

// service makes a service of an app one of the fork.
func (p Project) service(name string, s map[string]any, done map[string]bool) {
	for _, key := range []string{"container_name", "ports", "pull_policy"} {
		delete(s, key)
	}
	p.mark(s)
	at := slices.IndexFunc(p.Services, func(o Service) bool { return o.Name == name })
	if _, builds := s["build"]; builds {
		delete(s, "build")
		if at >= 0 {
			s["image"] = p.Services[at].Image
		}
	}
	if at >= 0 && !done[name] {
		done[name] = true
		if ports := p.Services[at].Ports; len(ports) > 0 {
			s["ports"] = ports
		}
	}
	if nets, ok := s["networks"].(map[string]any); ok {
		nets = maps.Clone(nets)
		for name, e := range nets {
			if one, ok := e.(map[string]any); ok {
				one = maps.Clone(one)
				delete(one, "ipv4_address")
				delete(one, "ipv6_address")
				if nets[name] = one; len(one) == 0 {
					nets[name] = nil
				}
			}
		}
		s["networks"] = nets
	}
	if list, ok := s["volumes"].([]any); ok {
		list = slices.Clone(list)
		for i, v := range list {
			switch v := v.(type) {
			case string:
				list[i] = p.moved(v)
			case map[string]any:
				if source, ok := v["source"].(string); ok {
					v = maps.Clone(v)
					v["source"], list[i] = p.moved(source), v
				}
			}
		}
		s["volumes"] = list
	}
	switch files := s["env_file"].(type) {
	case string:
		s["env_file"] = p.moved(files)
	case []any:
		files = slices.Clone(files)
		for i, f := range files {
			if text, ok := f.(string); ok {
				files[i] = p.moved(text)
			}
		}
		s["env_file"] = files
	}
}

// moved returns a path, or a mount that begins with one, with the fork's folder in the place of the app's.
func (p Project) moved(text string) string {
	rest, ok := strings.CutPrefix(text, p.Parent)
	if ok && (rest == "" || rest[0] == '/' || rest[0] == ':') {
		return p.Folder + rest
	}
	return text
}

// network gives the network that tools make by themselves the fork's label.
func (p Project) network(all []map[string]any) {
	if len(all) == 0 {
		return
	}
	for _, m := range all {
		nets := entries(m, "networks")
		if _, ok := nets["default"]; ok || p.OneNetwork && len(nets) > 0 {
			return
		}
	}
	nets, ok := all[0]["networks"].(map[string]any)
	if !ok {
		nets = map[string]any{}
		all[0]["networks"] = nets
	}
	e := map[string]any{}
	p.mark(e)
	nets["default"] = e
}
