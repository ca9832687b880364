package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
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
        chown postgres:postgres /data
        setpriv --reuid 999 --regid 999 --clear-groups $$bin/initdb -D /data/pg -U postgres -A trust --locale=C -E UTF8 -N
        echo 'host all all all trust' >>/data/pg/pg_hba.conf
        exec setpriv --reuid 999 --regid 999 --clear-groups $$bin/postgres -D /data/pg -c shared_buffers=16MB -c unix_socket_directories=/tmp -c listen_addresses='*'
    volumes: ["/usr:/usr:ro", "rows:/data"]
    ports: ["127.0.0.1:15432:5432"]
  cache:
    image: redis:0
    command: ["/bin/sh", "-c", "exec redis-server --dir /data --appendonly yes --save ''"]
    volumes: ["/usr:/usr:ro", "keys:/data"]
  web:
    image: web:0
    command: ["/bin/sh", "-c", "trap 'exit 0' TERM; python3 -m http.server 8080 -d /www & wait"]
    ports: ["127.0.0.1:18080:8080"]
    volumes: ["/usr:/usr:ro", "./www:/www", "uploads:/data"]
volumes: {rows: {}, keys: {}, uploads: {}}
`

// TestInitContainers protects a compose project by one command, as a user would, and takes it back: the page, rows, keys and uploads. The
// container with the database that is reached by its port runs on. A run takes one of the kinds of engines; TestContainers of package
// daemon takes all.
func TestInitContainers(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "postgres", "redis", "python3")
	for _, i := range testkit.Sample(t, "kinds of engines", len(enginetest.Kinds), 1) {
		kind := enginetest.Kinds[i]
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			h := enginetest.Boot(t, kind)
			usual := map[enginetest.Kind]string{enginetest.Docker: "/run/docker.sock", enginetest.Podman: "/run/podman/podman.sock"}[kind]
			h.Run(t, "/bin/sh", "-c", `mkdir -p "$(dirname "$2")" && ln -s "$1" "$2"`, "sh", h.Socket, usual)
			for _, name := range []string{"postgres:0", "redis:0", "web:0"} {
				h.Run(t, string(kind), "tag", enginetest.Image, name)
			}
			ws := filepath.Join(h.Dir, "shop")
			page := filepath.Join(ws, "www", "index.html")
			if err := os.MkdirAll(filepath.Dir(page), 0o755); err != nil {
				t.Fatal(err)
			}
			write := func(path, text string) {
				t.Helper()
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write(filepath.Join(ws, "compose.yml"), stack)
			write(page, "good")
			run := func(args ...string) string {
				t.Helper()
				cmd := h.Command(t.Context(), append([]string{"/bin/sh", "-c", `cd "$0" && exec "$@"`, ws}, args...)...)
				cmd.Env = append(cmd.Env, "HOME="+h.Dir, "XDG_STATE_HOME="+h.Dir+"/state", "XDG_CONFIG_HOME="+h.Dir+"/config", "XDG_RUNTIME_DIR="+h.Dir+"/run")
				var out, said bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &said
				if err := cmd.Run(); err != nil {
					t.Fatalf("%q: %v\n%s%s", args, err, out.String(), said.String())
				}
				return strings.TrimSpace(out.String())
			}
			in := func(name string, args ...string) string {
				t.Helper()
				return run(append([]string{string(kind), "exec", name}, args...)...)
			}
			run(map[enginetest.Kind]string{enginetest.Docker: "docker-compose", enginetest.Podman: "podman-compose"}[kind], "up", "-d")
			testkit.Eventually(t, "the database answers", func() bool {
				_, err := h.Exec("psql", "-h", "127.0.0.1", "-p", "15432", "-U", "postgres", "-c", "SELECT 1")
				return err == nil
			})
			sql := func(text string) string {
				t.Helper()
				return run("psql", "-h", "127.0.0.1", "-p", "15432", "-U", "postgres", "-qtAc", text)
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

			mulligan := func(args ...string) string {
				t.Helper()
				return run(append([]string{filepath.Join(bin, "mulligan")}, args...)...)
			}
			said := mulligan("init", "--yes")
			for _, words := range []string{"containers: compose project shop (compose.yml)", "volume keys: its files", "volume uploads: its files", "service db in compose.yml",
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
		})
	}
}
