package collide

import (
	"maps"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
)

// TestPorts finds the ports that variables hold, and what in an app's settings would collide with its forks.
func TestPorts(t *testing.T) {
	web := &ipc.Health{URL: "http://127.0.0.1:3000/health"}
	for _, c := range []struct {
		about  string
		app    ipc.App
		values map[string]string
		want   map[string]int
		says   string
	}{
		{"a default in run", ipc.App{Run: []string{"sh", "-c", "exec x ${PORT:-3000} $API"}, Health: web, Forking: ipc.Forking{Ports: []string{"API", "PORT"}, Expose: []int{4000}}},
			nil, map[string]int{"PORT": 3000, "API": 4000}, ""},
		{"a value, which is over a default", ipc.App{Run: []string{"sh", "-c", "x ${PORT:-1}"}, Health: web, Forking: ipc.Forking{Ports: []string{"PORT"}}},
			map[string]string{"PORT": "3000"}, map[string]int{"PORT": 3000}, ""},
		{"no value", ipc.App{Run: []string{"./x"}, Health: web, Forking: ipc.Forking{Ports: []string{"A", "B"}}}, nil, map[string]int{"A": 3000, "B": 0}, ""},
		{"nothing runs", ipc.App{Health: web}, nil, map[string]int{}, ""},
		{"nobody asks", ipc.App{Run: []string{"./x"}}, nil, map[string]int{}, ""},
		{"a default port", ipc.App{Run: []string{"./x"}, Health: &ipc.Health{URL: "http://localhost/"}}, nil, map[string]int{}, ""},
		{"a longer number", ipc.App{Run: []string{"./x", "--id=13000", "30001"}, Health: web, Forking: ipc.Forking{Ports: []string{"PORT"}}}, nil, map[string]int{"PORT": 3000}, ""},
		{"a folder beside", ipc.App{Workspace: "/srv/shop", Run: []string{"/srv/shop-tools/x", "/srv/shop.d"}}, nil, map[string]int{}, ""},
		{"no variable", ipc.App{Run: []string{"./x"}, Health: web}, nil, nil, "listens at port 3000"},
		{"too few variables", ipc.App{Run: []string{"./x"}, Health: web, Forking: ipc.Forking{Ports: []string{"PORT"}, Expose: []int{3000, 3001}}}, nil, nil, "listens at port 3001"},
		{"another value", ipc.App{Run: []string{"./x"}, Health: web, Forking: ipc.Forking{Ports: []string{"PORT"}}}, map[string]string{"PORT": "8080"}, nil, "listens at port 3000"},
		{"a port in run", ipc.App{Run: []string{"./x", "-p3000"}, Health: web, Forking: ipc.Forking{Ports: []string{"PORT"}}}, nil, nil, "run names port 3000"},
		{"a port set in run", ipc.App{Run: []string{"sh", "-c", "PORT=3000 ./x"}, Health: web, Forking: ipc.Forking{Ports: []string{"PORT"}}}, nil, nil, "run names port 3000"},
		{"a port in a check", ipc.App{Run: []string{"./x"}, Health: &ipc.Health{Command: []string{"curl", "localhost:3000"}}, Forking: ipc.Forking{Ports: []string{"PORT"}}},
			map[string]string{"PORT": "3000"}, nil, "the health check names port 3000"},
		{"the folder in run", ipc.App{Workspace: "/srv/shop", Run: []string{"sh", "-c", "cd /srv/shop; ./x"}}, nil, nil, "run names the app's folder"},
	} {
		got, err := Ports(c.app, c.values)
		if c.says == "" && (err != nil || !maps.Equal(got, c.want)) {
			t.Errorf("%s: %v, %v, want %v", c.about, got, err, c.want)
		}
		if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || errs.HintOf(err) == "" || errs.KindOf(err) != errs.Unsupported) {
			t.Errorf("%s: %v, want %s", c.about, err, c.says)
		}
	}
}

func TestReplacePath(t *testing.T) {
	for text, want := range map[string]string{
		"/srv/shop": "/f", "sqlite:////srv/shop/x.db?y=/srv/shop&": "sqlite:////f/x.db?y=/f&", "/srv/shop2 /srv/shop-forks": "/srv/shop2 /srv/shop-forks", "'/srv/shop'": "'/f'",
	} {
		if got := ReplacePath(text, "/srv/shop", "/f"); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]bool{
		"/tmp/x.sock": true, `"unix:/tmp/x"`: true, "unix:///tmp/x": true, "/srv/tmp/x": false, "./tmp/x": false, "/tmp": false, "a=/dev/shm/y": true, "https://h/tmp/x": false,
	} {
		if got := sharedPath(text); got != want {
			t.Errorf("%q names a path of all: %v, want %v", text, got, want)
		}
	}
}
