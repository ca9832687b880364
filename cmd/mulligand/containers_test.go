package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mulligan/engine/enginetest"
	"mulligan/testkit"
)

// stack is a compose project with a database that is published, one that is not, and a volume.
const stack = `version: "3.7"
services:
  db:
    image: postgres:0
    stop_signal: SIGINT
    environment: {POSTGRES_USER: postgres, POSTGRES_PASSWORD: hunter2, POSTGRES_DB: postgres}
    command:
      - /bin/sh
      - -ec
      - |
        bin=$$(ls -d /usr/lib/postgresql/*/bin | tail -1)
        if [ ! -e /data/pg ]; then
          chown postgres:postgres /data
          setpriv --reuid 999 --regid 999 --clear-groups $$bin/initdb -D /data/pg -U postgres -A trust --locale=C -E UTF8 -N
          echo 'host all all all trust' >>/data/pg/pg_hba.conf
        fi
        exec setpriv --reuid 999 --regid 999 --clear-groups $$bin/postgres -D /data/pg -c shared_buffers=16MB -c unix_socket_directories=/tmp -c listen_addresses='*'
    volumes: ["/usr:/usr:ro", "rows:/data"]
    ports: ["127.0.0.1:15432:5432"]
  cache:
    image: redis:0
    command: ["/bin/sh", "-c", "exec redis-server --dir /data --appendonly yes --save '' --protected-mode no"]
    volumes: ["/usr:/usr:ro", "keys:/data"]
  web:
    image: web:0
    command: ["/bin/sh", "-c", "trap 'exit 0' TERM; python3 -m http.server 8080 -d /www & wait"]
    ports: ["127.0.0.1:18080:8080"]
    volumes: ["/usr:/usr:ro", "./www:/www", "uploads:/data"]
volumes: {rows: {}, keys: {}, uploads: {}}
`

// published is the line of the stack that gives the database a port of the host.
const published = `    ports: ["127.0.0.1:15432:5432"]
`

// hidden starts a program where the host has no tools of PostgreSQL.
const hidden = `mount -t tmpfs none /usr/lib/postgresql && mount --bind /dev/null /usr/bin/pg_dump && exec "$@"`

// stackApp is a compose project that runs in an engine of its own, with its folder.
type stackApp struct {
	t    testing.TB
	h    *enginetest.Host
	ws   string
	tool string // of the compose project
}

// startStack writes a compose file and .env, and starts the project as its user would.
func startStack(t testing.TB, kind enginetest.Kind, text, env string) *stackApp {
	t.Helper()
	h := enginetest.Boot(t, kind)
	usual := map[enginetest.Kind]string{enginetest.Docker: "/run/docker.sock", enginetest.Podman: "/run/podman/podman.sock"}[kind]
	h.Run(t, "/bin/sh", "-c", `mkdir -p "$(dirname "$2")" && ln -s "$1" "$2"`, "sh", h.Socket, usual)
	for _, name := range []string{"postgres:0", "redis:0", "web:0"} {
		h.Run(t, string(kind), "tag", enginetest.Image, name)
	}
	c := &stackApp{t, h, filepath.Join(h.Dir, "shop"), map[enginetest.Kind]string{enginetest.Docker: "docker-compose", enginetest.Podman: "podman-compose"}[kind]}
	if err := os.MkdirAll(filepath.Join(c.ws, "www"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(h.Dir, "run", "mulligan"), 0o700); err != nil { // else the engine makes it, for a container that mounts it
		t.Fatal(err)
	}
	c.write(filepath.Join(c.ws, "compose.yml"), text)
	if env != "" {
		c.write(filepath.Join(c.ws, ".env"), env)
	}
	c.write(filepath.Join(c.ws, "www", "index.html"), "good")
	c.run(c.tool, "up", "-d")
	return c
}

func (c *stackApp) write(path, text string) {
	c.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// run runs a command in the project's folder.
func (c *stackApp) run(args ...string) string {
	c.t.Helper()
	cmd := c.h.Command(c.t.Context(), append([]string{"/bin/sh", "-c", `cd "$0" && exec "$@"`, c.ws}, args...)...)
	cmd.Env = append(cmd.Env, "HOME="+c.h.Dir, "XDG_STATE_HOME="+c.h.Dir+"/state", "XDG_CONFIG_HOME="+c.h.Dir+"/config", "XDG_RUNTIME_DIR="+c.h.Dir+"/run")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		c.t.Fatalf("%q: %v\n%s%s", args, err, out.String(), said.String())
	}
	return strings.TrimSpace(out.String())
}

// in runs a command in a container.
func (c *stackApp) in(name string, args ...string) string {
	c.t.Helper()
	out, err := c.try(name, args...)
	if err != nil {
		c.t.Fatalf("%q in %s: %v", args, name, err)
	}
	return out
}

func (c *stackApp) try(name string, args ...string) (string, error) {
	cmd, err := c.h.Inside(c.t.Context(), name, args...)
	if err != nil {
		return "", err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s%s", err, out, said.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

func (c *stackApp) mulligan(args ...string) string {
	c.t.Helper()
	return c.run(append([]string{filepath.Join(bin, "mulligan")}, args...)...)
}

// TestInitContainers protects a compose project by one command, as a user would, and takes it back: the page, rows, keys and uploads. The
// container with the database runs on. In half of the cases neither the database has a port on the host, for which the host has no tools, nor
// Redis, which is captured through its server because it has no volume. A run takes one engine and one case.
func TestInitContainers(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "postgres", "redis", "python3")
	for _, i := range testkit.Sample(t, "engines, with and without ports", 2*len(enginetest.Kinds), 1) {
		kind, within := enginetest.Kinds[i/2], i%2 == 1
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			text, source, env, keys := stack, "service db in compose.yml", "", "volume keys: its files"
			if within {
				text, source, env = strings.Replace(stack, published, "", 1), "DATABASE_URL in .env", "DATABASE_URL=postgres://postgres:hunter2@db:5432/postgres\n"
				text, keys = strings.Replace(text, `, "keys:/data"`, "", 1), "service cache in compose.yml"
			}
			c := startStack(t, kind, text, env)
			h, write, run, in := c.h, c.write, c.run, c.in
			page := filepath.Join(c.ws, "www", "index.html")
			testkit.Eventually(t, "the database answers", func() bool {
				_, err := c.try("shop_db_1", "psql", "-h", "/tmp", "-U", "postgres", "-c", "SELECT 1")
				return err == nil
			})
			sql := func(text string) string {
				t.Helper()
				return in("shop_db_1", "psql", "-h", "/tmp", "-U", "postgres", "-qtAc", text)
			}
			says := func() string {
				t.Helper()
				var got []byte
				testkit.Eventually(t, "the page answers", func() (ok bool) {
					var err error
					got, err = h.Command(t.Context(), "curl", "-sf", "http://127.0.0.1:18080/").Output()
					return err == nil
				})
				return fmt.Sprintf("%s|%s|%s|%s", got, sql("SELECT coalesce(string_agg(to_regclass('goods')::text, ''), 'no table')"), in("shop_cache_1", "redis-cli", "get", "visits"), in("shop_web_1", "/bin/sh", "-c", "cat /data/* || :"))
			}
			ids := func() string {
				t.Helper()
				return run(string(kind), "inspect", "-f", "{{.Id}} {{.State.Running}}", "shop_web_1", "shop_cache_1", "shop_db_1") +
					run(string(kind), "inspect", "-f", "{{.State.StartedAt}}", "shop_db_1")
			}
			sql("CREATE TABLE goods (name text); INSERT INTO goods VALUES ('tea')")
			in("shop_cache_1", "redis-cli", "set", "visits", "7")
			in("shop_web_1", "/bin/sh", "-c", "echo one >/data/picture")
			good, were := says(), ids()

			mulligan := c.mulligan
			var said string
			if within {
				said = run("unshare", "-m", "/bin/sh", "-ec", hidden, "sh", filepath.Join(bin, "mulligan"), "init", "--yes")
			} else {
				said = mulligan("init", "--yes")
			}
			for _, words := range []string{"containers: compose project shop (compose.yml)", keys, "volume uploads: its files", source,
				"result\tadded", "state\trunning", "unit\tcompose:shop", "container\tshop_db_1 serves postgres"} {
				if !strings.Contains(said, words) {
					t.Errorf("init says nothing of %q:\n%s", words, said)
				}
			}
			if strings.Contains(said, "volume\trows") {
				t.Errorf("the volume of a database that is dumped is captured too:\n%s", said)
			}
			mulligan("create", "--notes", "good")
			write(page, "broken")
			sql("DROP TABLE goods")
			in("shop_cache_1", "redis-cli", "flushall")
			in("shop_web_1", "/bin/sh", "-c", "rm /data/*; echo two >/data/other")
			broken := says()
			mulligan("rollback", "1")
			if got := says(); got != good {
				t.Errorf("after the rollback:\n%s\nwant\n%s", got, good)
			}
			if now := ids(); now != were {
				t.Errorf("the containers are\n%s\nand were\n%s", now, were)
			}
			mulligan("redo")
			if got := says(); got != broken {
				t.Errorf("after redo:\n%s\nwant\n%s", got, broken)
			}
			c.forked(good)
			if got := says(); got != strings.Replace(good, "good", "better", 1) {
				t.Errorf("after keep:\n%s", got)
			}
			if now := ids(); now != were {
				t.Errorf("the containers are\n%s\nand were\n%s", now, were)
			}
		})
	}
}

// forked makes a fork of the good checkpoint, as docs/how-to/containers.md says, changes its page, and keeps it.
func (c *stackApp) forked(good string) {
	t := c.t
	t.Helper()
	if c.h.Kind == enginetest.Podman { // the engine is not where podman looks for one
		text := "#!/bin/sh\n"
		for _, v := range c.h.Command(t.Context(), "true").Env {
			if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "CONTAINERS_") {
				text += "export " + name + "='" + value + "'\n"
			}
		}
		c.write(c.h.Dir+"/tool", text+"exec podman-compose \"$@\"\n")
		if err := os.Chmod(c.h.Dir+"/tool", 0o755); err != nil {
			t.Fatal(err)
		}
		c.mulligan("app", "set", "fork.compose="+c.h.Dir+"/tool")
	}
	c.mulligan("fork", "--name", "a", "3") // the newer ones are those of rollback and redo
	said := c.mulligan("forks")
	at := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(said, -1)
	testkit.Eventually(t, "the page of the fork is at one of "+said, func() bool {
		return slices.ContainsFunc(at, func(address string) bool {
			got, err := c.h.Command(t.Context(), "curl", "-sf", "http://"+address+"/").Output()
			return err == nil && string(got) == "good"
		})
	})
	if got := c.mulligan("exec", "a", "--", "sh", "-c", "echo $COMPOSE_PROJECT_NAME $DOCKER_HOST $(cat www/index.html)"); !strings.HasPrefix(got, "shop-fork-a unix:///") || !strings.HasSuffix(got, " good") {
		t.Errorf("inside of the fork: %s", got)
	}
	if c.h.Kind == enginetest.Docker {
		if got := c.mulligan("exec", "a", "--", "docker-compose", "ps"); !strings.Contains(got, "shop-fork-a_web_1") || strings.Contains(got, "shop_web_1") {
			t.Errorf("docker-compose ps in the fork:\n%s", got)
		}
	}
	if got := c.in("shop-fork-a_db_1", "psql", "-h", "/tmp", "-U", "postgres", "-qtAc", "SELECT * FROM goods"); got != "tea" {
		t.Errorf("the fork has the goods %q", got)
	}
	c.mulligan("exec", "a", "--", "sh", "-c", "printf better >www/index.html")
	c.mulligan("keep", "a")
	if left := c.run(string(c.h.Kind), "ps", "-aq", "--filter", "label=mulligan.fork"); left != "" {
		t.Errorf("left are %s", left)
	}
}

// dev is the service of docs/how-to/dev-container.md in which an agent works, beside the database of the stack.
const dev = `  dev:
    image: web:0
    command: ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"]
    working_dir: ${PWD}
    volumes:
      - /usr:/usr:ro
      - ${PWD}:${PWD}
      - ${XDG_RUNTIME_DIR}/mulligan:/run/mulligan
      - BIN/mulligan:/mulligan:ro
volumes: {rows: {}}
`

// TestLongDevContainer has an agent at work in one container, and the database in another one of the same project, as
// docs/how-to/dev-container.md says: mulligan's client in the agent's container takes the files and the rows back, and no container is stopped.
func TestLongDevContainer(t *testing.T) {
	t.Parallel()
	testkit.NeedLong(t)
	testkit.Need(t, "postgres")
	for _, kind := range enginetest.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			text := stack[:strings.Index(stack, "  cache:")] + strings.Replace(dev, "BIN", bin, 1)
			c := startStack(t, kind, strings.Replace(text, published, "", 1), "DATABASE_URL=postgres://postgres:hunter2@db:5432/postgres\n")
			testkit.Eventually(t, "the database answers", func() bool {
				_, err := c.try("shop_db_1", "psql", "-h", "/tmp", "-U", "postgres", "-c", "SELECT 1")
				return err == nil
			})
			sql := func(text string) string {
				return c.in("shop_db_1", "psql", "-h", "/tmp", "-U", "postgres", "-qtAc", text)
			}
			started := func() string {
				return c.run(string(kind), "inspect", "-f", "{{.Id}} {{.State.Running}} {{.State.StartedAt}}", "shop_dev_1", "shop_db_1")
			}
			says := func() string {
				return c.in("shop_dev_1", "cat", "www/index.html") + " " + sql("SELECT coalesce(string_agg(to_regclass('goods')::text, ''), 'no table')")
			}
			sql("CREATE TABLE goods (name text); INSERT INTO goods VALUES ('tea')")
			were := started()
			c.mulligan("init", "--yes")
			if said := c.mulligan("app", "set", "unit=container:shop_db_1"); !strings.Contains(said, "container\tshop_db_1 serves postgres") {
				t.Errorf("app set says:\n%s", said)
			}
			agent := func(args ...string) string { return c.in("shop_dev_1", append([]string{"/mulligan"}, args...)...) }
			agent("create", "--notes", "before the agent")
			c.in("shop_dev_1", "/bin/sh", "-c", "echo broken >www/index.html")
			sql("DROP TABLE goods")
			agent("rollback", "1")
			if got := says(); got != "good goods" {
				t.Errorf("after the rollback: %s", got)
			}
			agent("redo")
			if got := says(); got != "broken no table" {
				t.Errorf("after redo: %s", got)
			}
			if now := started(); now != were {
				t.Errorf("the containers are\n%s\nand were\n%s", now, were)
			}
		})
	}
}
