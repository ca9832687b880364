package compose

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"mulligan/errs"
)

// project is what the files of the tests are to say.
func project(files ...string) Project {
	return Project{
		Folder: "/srv/shop-forks/1", Parent: "/srv/shop", Files: files, Label: "l", ID: "7",
		Services: []Service{{Name: "web", Image: "shop_web", Ports: []string{"127.0.0.1:21000:80/tcp"}}},
	}
}

// TestRewrite makes a project of its own of compose files.
func TestRewrite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text, want string
		one              bool
	}{
		{name: "names, ports and a recipe", text: `
name: shop
services:
  web: {build: ., container_name: shop, ports: ["80:80", "81:81"], pull_policy: always, labels: [a=b]}
volumes: {rows: {name: rows, external: true}, keys: }
networks: {front: {name: front, ipam: {config: [{subnet: 10.0.0.0/24}]}}}
`, want: `
services:
  web: {image: shop_web, ports: ["127.0.0.1:21000:80/tcp"], labels: [a=b, l=7]}
volumes: {rows: {labels: {l: "7"}}, keys: {labels: {l: "7"}}}
networks: {front: {labels: {l: "7"}}, default: {labels: {l: "7"}}}
`},
		{name: "mounts of the app's folder", text: `
services:
  web:
    image: x
    env_file: [/srv/shop/e, other]
    volumes: ["/srv/shop:/a", "/srv/shop/www:/b:ro", "/srv/shopping:/c", "./d:/srv/shop", "rows:/e", {type: bind, source: /srv/shop/f, target: /f}]
`, want: `
services:
  web:
    image: x
    env_file: [/srv/shop-forks/1/e, other]
    volumes: ["/srv/shop-forks/1:/a", "/srv/shop-forks/1/www:/b:ro", "/srv/shopping:/c", "./d:/srv/shop", "rows:/e", {type: bind, source: /srv/shop-forks/1/f, target: /f}]
    ports: ["127.0.0.1:21000:80/tcp"]
    labels: {l: "7"}
networks: {default: {labels: {l: "7"}}}
`},
		{name: "what aliases share", text: `
x-all: &all {image: x, labels: {a: b}, ports: ["1:1"]}
services:
  web: *all
  other: {<<: *all, networks: {back: {ipv4_address: 10.0.0.2, aliases: [o]}}}
networks: {back: }
`, one: true, want: `
x-all: {image: x, labels: {a: b}, ports: ["1:1"]}
services:
  web: {image: x, labels: {a: b, l: "7"}, ports: ["127.0.0.1:21000:80/tcp"]}
  other: {image: x, labels: {a: b, l: "7"}, networks: {back: {aliases: [o]}}}
networks: {back: {labels: {l: "7"}}}
`},
		{name: "an old version", text: "version: '2'\nservices: {web: {image: x}}\nnetworks: {default: {driver: bridge}}\n", want: `
version: "2.1"
services: {web: {image: x, ports: ["127.0.0.1:21000:80/tcp"], labels: {l: "7"}}}
networks: {default: {driver: bridge, labels: {l: "7"}}}
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := project("compose.yml")
			p.OneNetwork = c.one
			out, err := rewrite([][]byte{[]byte(c.text)}, p)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := plain(t, out[0]), plain(t, []byte(c.want)); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
	out, err := rewrite([][]byte{[]byte("services: {web: {image: x, ports: ['1:1']}}"), []byte("services: {web: {ports: ['2:2'], labels: {a: b}}}")}, project("a.yml", "b.yml"))
	if err != nil {
		t.Fatal(err)
	}
	if all := plain(t, out[0]) + plain(t, out[1]); strings.Count(all, "21000") != 1 || strings.Contains(all, "2:2") || strings.Count(all, `l: "7"`) != 3 {
		t.Errorf("of two files:\n%s", all)
	}
}

// plain returns a text with its keys in order.
func plain(t *testing.T, text []byte) string {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	out, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestRewriteRefuses has compose files that cannot be made a project of a fork.
func TestRewriteRefuses(t *testing.T) {
	t.Parallel()
	for text, words := range map[string]string{
		"services: {db: {image: x}}":                            "the service web is in none of the compose files compose.yml",
		"services: {web: {image: x, ports: !override ['1:1']}}": "line 1 (!override)",
		"a: [":     "the compose file compose.yml of the fork cannot be used",
		"services": "the compose file compose.yml of the fork cannot be used",
		"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n": "excessive aliasing",
	} {
		_, err := rewrite([][]byte{[]byte(text)}, project("compose.yml"))
		if err == nil || !strings.Contains(err.Error(), words) || errs.HintOf(err) == "" {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

// FuzzRewrite has any text as a compose file: it is refused, or the result has no ports but the fork's, and each entry has its label.
func FuzzRewrite(f *testing.F) {
	f.Add("services: {web: {image: x, ports: ['1:1']}}\nvolumes: {a: {name: b}}\n")
	f.Add("x: &x {ports: [1]}\nservices: {web: *x, b: {<<: *x}}\nnetworks: {n: }\n")
	f.Fuzz(func(t *testing.T, text string) {
		out, err := rewrite([][]byte{[]byte(text)}, project("compose.yml"))
		if err != nil {
			return
		}
		var m map[string]any
		if err := yaml.Unmarshal(out[0], &m); err != nil {
			t.Fatalf("%v\n%s", err, out[0])
		}
		for _, part := range []string{"services", "volumes", "networks"} {
			for name, e := range entries(m, part) {
				marked := false
				switch labels := e["labels"].(type) {
				case map[string]any:
					marked = labels["l"] == "7"
				case []any:
					marked = len(labels) > 0 && labels[len(labels)-1] == "l=7"
				}
				if !marked || e["name"] != nil && part != "services" || e["container_name"] != nil && part == "services" {
					t.Errorf("%s %s: %v", part, name, e)
				}
				if ports, ok := e["ports"]; ok && part == "services" && name != "web" {
					t.Errorf("%s has the ports %v", name, ports)
				}
			}
		}
	})
}
