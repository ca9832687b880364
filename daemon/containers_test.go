package daemon_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/engine/enginetest"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// composeFile is a shop: a web server over a folder of the workspace, PostgreSQL and Redis in volumes, and uploads in another one. All of
// them run the host's programs.
const composeFile = `version: "3.7"
services:
  db:
    image: ` + enginetest.Image + `
    restart: always
    stop_signal: SIGINT
    command:
      - /bin/sh
      - -ec
      - |
        bin=$$(ls -d /usr/lib/postgresql/*/bin | tail -1)
        if [ ! -e /data/pg ]; then
          chown postgres:postgres /data
          setpriv --reuid 999 --regid 999 --clear-groups $$bin/initdb -D /data/pg -U postgres -A trust --locale=C -E UTF8 -N
        fi
        exec setpriv --reuid 999 --regid 999 --clear-groups $$bin/postgres -D /data/pg -c shared_buffers=16MB -c unix_socket_directories=/tmp
    volumes: ["/usr:/usr:ro", "rows:/data"]
    healthcheck: {test: ["CMD", "pg_isready", "-h", "/tmp"], interval: 1s, timeout: 5s, retries: 60}
  cache:
    image: ` + enginetest.Image + `
    restart: unless-stopped
    command: ["/bin/sh", "-c", "exec redis-server --dir /data --appendonly yes --save ''"]
    volumes: ["/usr:/usr:ro", "keys:/data"]
  web:
    image: ` + enginetest.Image + `
    command: ["/bin/sh", "-c", "trap 'exit 0' TERM; python3 -m http.server 8080 -d /www & wait"]
    volumes: ["/usr:/usr:ro", "./www:/www", "uploads:/data"]
volumes: {rows: {}, keys: {}, uploads: {}}
`

// project is a compose project on a real engine.
type project struct {
	*enginetest.Host
	t  *testing.T
	ws string
	// names of the containers
	web, db, cache string
}

// startProject starts the shop by the engine's own compose tool.
func startProject(t *testing.T, kind enginetest.Kind) *project {
	testkit.Need(t, "postgres", "redis", "python3")
	p := &project{Host: enginetest.Boot(t, kind), t: t}
	p.ws = filepath.Join(p.Dir, "shop")
	if err := os.MkdirAll(p.ws+"/www", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, p.ws, "compose.yml", composeFile)
	write(t, p.ws, "www/index.html", "good")
	tool := map[enginetest.Kind]string{enginetest.Docker: "docker-compose", enginetest.Podman: "podman-compose"}[kind]
	p.Run(t, "/bin/sh", "-c", fmt.Sprintf("cd %s && %s -f compose.yml -p shop up -d 2>&1", p.ws, tool))
	p.web, p.db, p.cache = "shop_web_1", "shop_db_1", "shop_cache_1"
	testkit.Eventually(t, "the database answers", func() bool { return p.try(p.db, "psql", "-h", "/tmp", "-U", "postgres", "-c", "SELECT 1") == nil })
	p.sql("CREATE TABLE goods (name text); INSERT INTO goods VALUES ('tea'), ('salt')")
	p.in(p.cache, "redis-cli", "set", "visits", "7")
	p.in(p.web, "/bin/sh", "-c", "mkdir /data/pictures && echo one >/data/pictures/1 && chown 1234:99 /data/pictures/1 && chmod 640 /data/pictures/1 && ln -s 1 /data/pictures/first")
	return p
}

// try runs a command in a container.
func (p *project) try(name string, cmd ...string) error {
	out, err := p.Exec(append([]string{string(p.Kind), "exec", name}, cmd...)...)
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (p *project) in(name string, cmd ...string) string {
	p.t.Helper()
	c := p.Command(p.t.Context(), append([]string{string(p.Kind), "exec", name}, cmd...)...)
	var said bytes.Buffer
	c.Stderr = &said // Podman warns there of what it cannot do here
	out, err := c.Output()
	if err != nil {
		p.t.Fatalf("%s: %v: %s%s", strings.Join(cmd, " "), err, out, said.Bytes())
	}
	return strings.TrimSpace(string(out))
}

func (p *project) sql(text string) string {
	p.t.Helper()
	return p.in(p.db, "psql", "-h", "/tmp", "-U", "postgres", "-qtAc", text)
}

// ids returns which containers there are.
func (p *project) ids() string {
	p.t.Helper()
	return p.Run(p.t, string(p.Kind), "inspect", "-f", "{{.Id}} {{.HostConfig.RestartPolicy.Name}}", p.web, p.db, p.cache)
}

// says returns what the app's parts say: the page, the rows, the keys, and the uploads with their owners and modes.
func (p *project) says() string {
	p.t.Helper()
	page := "no answer"
	testkit.Eventually(p.t, "the page", func() bool {
		if p.try(p.web, "curl", "-sf", "http://127.0.0.1:8080/") != nil {
			return false
		}
		page = p.in(p.web, "curl", "-sf", "http://127.0.0.1:8080/index.html")
		return true
	})
	rows := "no table"
	if p.try(p.db, "psql", "-h", "/tmp", "-U", "postgres", "-c", "SELECT FROM goods") == nil {
		rows = p.sql("SELECT string_agg(name, ' ' ORDER BY name) FROM goods")
	}
	return strings.Join([]string{page, rows, p.in(p.cache, "redis-cli", "get", "visits"),
		p.in(p.web, "/bin/sh", "-c", "cd /data && find . -mindepth 1 -printf '%p %U %G %m %l;' | sort; cat pictures/1 2>/dev/null || :")}, "|")
}

// TestContainers takes a compose project back and forward: files, a database, keys and uploads in volumes. Its containers stay the same
// ones, and those that ran run.
func TestContainers(t *testing.T) {
	t.Parallel()
	for _, i := range testkit.Sample(t, "kinds of engines", len(enginetest.Kinds), 1) {
		kind := enginetest.Kinds[i]
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			p := startProject(t, kind)
			opt := daemon.Options{StateDir: filepath.Join(t.TempDir(), "state"), StopTimeout: 20 * time.Second, Steady: steady}
			d := openForks(t, opt)
			spec := ipc.App{Slug: "shop", Workspace: p.ws, Unit: "compose:shop", Engine: p.Socket, Volumes: []ipc.Volume{{Name: "rows"}, {Name: "keys"}, {Name: "uploads"}}}
			added, err := d.AddApp(t.Context(), root, spec)
			if err != nil {
				t.Fatal(err)
			}
			if len(added.Containers) != 3 || added.State != "running" {
				t.Errorf("%+v", added)
			}
			ids, good := p.ids(), p.says()
			none := ipc.QuiesceNone
			live, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: none})
			if err != nil {
				t.Fatal(err)
			}
			if len(live.VolumeSnapshots) != 3 {
				t.Errorf("%+v", live)
			}
			if got := p.says(); got != good {
				t.Errorf("after a checkpoint: %s", got)
			}

			write(t, p.ws, "www/index.html", "broken")
			p.sql("DROP TABLE goods")
			p.in(p.cache, "redis-cli", "flushall")
			p.in(p.web, "/bin/sh", "-c", "rm -r /data/*; echo bad >/data/bad")
			broken := p.says()
			res, err := d.Rollback(t.Context(), root, "shop", live.ID, ipc.RollbackRequest{}, nil)
			if err != nil {
				logs, _ := p.Exec(string(kind), "logs", p.db)
				ps, _ := p.Exec(string(kind), "ps", "-a")
				t.Fatalf("%v\n%+v\n%s\n%s", err, res, logs, ps)
			}
			if got := p.says(); got != good {
				t.Errorf("after the rollback:\n%s\nwant\n%s", got, good)
			}
			if got := p.ids(); got != ids {
				t.Errorf("the containers are\n%s\nand were\n%s", got, ids)
			}
			for _, step := range []struct {
				to   ipc.CheckpointID
				want string
			}{{ipc.Redo, broken}, {live.ID, good}} {
				if res, err = d.Rollback(t.Context(), root, "shop", step.to, ipc.RollbackRequest{}, nil); err != nil {
					t.Fatalf("%s: %v\n%+v", step.to, err, res)
				}
				if got := p.says(); got != step.want {
					t.Errorf("after %s:\n%s\nwant\n%s", step.to, got, step.want)
				}
			}

			p.Run(t, string(kind), "run", "-d", "--name", "stranger", "-v", "/usr:/usr:ro", "-v", "shop_uploads:/data", enginetest.Image, "/bin/sh", "-c", "sleep 1000")
			before := p.ids()
			_, err = d.Rollback(t.Context(), root, "shop", live.ID, ipc.RollbackRequest{}, nil)
			if errs.KindOf(err) != errs.Conflict || !strings.Contains(fmt.Sprint(err), "volume shop_uploads is also used by containers that are not of the app: stranger") {
				t.Errorf("beside a stranger: %v", err)
			}
			if _, err = d.Rollback(t.Context(), root, "shop", live.ID, ipc.RollbackRequest{Without: []string{"volume:uploads"}}, nil); err != nil {
				t.Error(err)
			}
			p.Run(t, string(kind), "rm", "-f", "stranger")
			p.Run(t, string(kind), "rm", "-f", p.cache)
			_, err = d.Rollback(t.Context(), root, "shop", live.ID, ipc.RollbackRequest{}, nil)
			if errs.KindOf(err) != errs.NotFound || !strings.Contains(fmt.Sprint(err), "lost a container: "+p.cache) || !strings.Contains(errs.HintOf(err), "compose -p shop up") {
				t.Errorf("without a container: %v; %s", err, errs.HintOf(err))
			}
			if p.Run(t, string(kind), "inspect", "-f", "{{.Id}}", p.web) != strings.Fields(before)[0] {
				t.Error("the web server is another one")
			}
			if _, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{}); errs.KindOf(err) != errs.Unsupported {
				t.Errorf("fork: %v", err)
			}
		})
	}
}
