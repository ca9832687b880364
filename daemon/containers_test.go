package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/engine/enginetest"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// composeFile is a shop: a web server over a folder of the workspace, a worker that takes jobs from Redis and writes uploads, PostgreSQL and Redis
// in volumes, and the uploads in another one. All of them run the host's programs.
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
    healthcheck: {test: ["CMD", "pg_isready", "-h", "/tmp"], interval: 3s, timeout: 5s, retries: 60}
  cache:
    image: ` + enginetest.Image + `
    restart: unless-stopped
    command: ["/bin/sh", "-c", "exec redis-server --dir /data --appendonly yes --save '' --protected-mode no"]
    volumes: ["/usr:/usr:ro", "keys:/data"]
  web:
    image: ` + enginetest.Image + `
    command: ["/bin/sh", "-c", "trap 'exit 0' TERM; python3 -m http.server 8080 -d /www & wait"]
    volumes: ["/usr:/usr:ro", "./www:/www", "uploads:/data"]
  worker:
    image: ` + enginetest.Image + `
    restart: always
    command:
      - /bin/sh
      - -c
      - |
        trap 'exit 0' TERM
        while :; do
          job=$$(timeout 5 redis-cli -h cache --raw rpop jobs 2>/dev/null)
          case $$job in *[!0-9]* | "") ;; *) echo "$$job" >"/data/done-$$job" ;; esac
          sleep 0.5
        done
    volumes: ["/usr:/usr:ro", "uploads:/data"]
volumes: {rows: {}, keys: {}, uploads: {}}
`

// project is a compose project on a real engine.
type project struct {
	*enginetest.Host
	t  testing.TB
	ws string
	// compose runs the engine's compose tool on the project.
	compose func(args string)
	// names of the containers
	web, worker, db, cache string
}

// startProject starts the shop by the engine's own compose tool. Edits are pairs of texts: what is replaced in the compose file, and by what.
func startProject(t testing.TB, kind enginetest.Kind, edits ...string) *project {
	testkit.Need(t, "postgres", "redis", "python3")
	p := &project{Host: enginetest.Boot(t, kind), t: t}
	p.ws = filepath.Join(p.Dir, "shop")
	if err := os.MkdirAll(p.ws+"/www", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, p.ws, "compose.yml", strings.NewReplacer(edits...).Replace(composeFile))
	write(t, p.ws, "www/index.html", "good")
	tool := map[enginetest.Kind]string{enginetest.Docker: "docker-compose", enginetest.Podman: "podman-compose"}[kind]
	p.compose = func(args string) {
		t.Helper()
		p.Run(t, "/bin/sh", "-c", fmt.Sprintf("cd %s && %s -f compose.yml -p shop %s 2>&1", p.ws, tool, args))
	}
	p.compose("up -d")
	p.web, p.worker, p.db, p.cache = "shop_web_1", "shop_worker_1", "shop_db_1", "shop_cache_1"
	testkit.Eventually(t, "the database answers", func() bool { return p.try(p.db, "psql", "-h", "/tmp", "-U", "postgres", "-c", "SELECT 1") == nil })
	p.sql("CREATE TABLE goods (name text); INSERT INTO goods VALUES ('tea'), ('salt')")
	p.in(p.cache, "redis-cli", "set", "visits", "7")
	p.in(p.web, "/bin/sh", "-c", "mkdir /data/pictures && echo one >/data/pictures/1 && chown 1234:99 /data/pictures/1 && chmod 640 /data/pictures/1 && ln -s 1 /data/pictures/first")
	return p
}

// try runs a command in a container.
func (p *project) try(name string, cmd ...string) error {
	c, err := p.Inside(p.t.Context(), name, cmd...)
	if err != nil {
		return err
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// in runs a command in a container. What takes longer than testkit.Patience hangs.
func (p *project) in(name string, cmd ...string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), testkit.Patience)
	defer cancel()
	c, err := p.Inside(ctx, name, cmd...)
	if err != nil {
		p.t.Fatalf("%s: %v", strings.Join(cmd, " "), err)
	}
	var said bytes.Buffer
	c.Stderr, c.WaitDelay = &said, time.Second
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

// ids returns which containers there are, whether they run, and their restart policies.
func (p *project) ids() string {
	p.t.Helper()
	return p.Run(p.t, string(p.Kind), "inspect", "-f", "{{.Id}} {{.State.Running}} {{.State.Paused}} {{.HostConfig.RestartPolicy.Name}}", p.web, p.worker, p.db, p.cache)
}

// testContainers takes a compose project back and forward: files, a database, keys and uploads in volumes. Its containers stay the same
// ones, and those that ran run, also after a kill.
func testContainers(t *testing.T) {
	t.Parallel()
	for _, i := range testkit.Sample(t, "kinds of engines", len(enginetest.Kinds), 1) {
		kind := enginetest.Kinds[i]
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, kind, byFiles)
			p, d := s.project, s.open(t)
			added, err := d.App(t.Context(), root, "shop")
			if err != nil || len(added.Containers) != 4 || added.State != "running" {
				t.Errorf("%+v, %v", added, err)
			}
			ids, good := p.ids(), s.state()
			none := ipc.QuiesceNone
			live, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: none})
			if err != nil {
				t.Fatal(err)
			}
			if len(live.VolumeSnapshots) != 3 {
				t.Errorf("%+v", live)
			}
			if got := s.state(); got != good {
				t.Errorf("after a checkpoint:\n%s", differences(good, got))
			}

			write(t, p.ws, "www/index.html", "broken")
			p.sql("DROP TABLE goods")
			p.in(p.cache, "redis-cli", "flushall")
			p.in(p.web, "/bin/sh", "-c", "rm -r /data/*; echo 1 >/data/bad")
			broken := s.state()
			res, err := d.Rollback(t.Context(), root, "shop", live.ID, ipc.RollbackRequest{}, nil)
			if err != nil {
				logs, _ := p.Exec(string(kind), "logs", p.db)
				ps, _ := p.Exec(string(kind), "ps", "-a")
				t.Fatalf("%v\n%+v\n%s\n%s", err, res, logs, ps)
			}
			if got := s.state(); got != good {
				t.Errorf("after the rollback:\n%s", differences(good, got))
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
				if got := s.state(); got != step.want {
					t.Errorf("after %s:\n%s", step.to, differences(step.want, got))
				}
			}
			s.close(t, d)
			s.states[live.ID] = good
			s.killed(1, map[string]int{"note containers": 1, "stop container": 4, "start container": 4, "give policy back": 4})
			d = s.open(t)
			defer func() { s.close(t, d) }()
			s.remade(d, live.ID)

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
			if hint := errs.HintOf(err); errs.KindOf(err) != errs.NotFound || !strings.Contains(fmt.Sprint(err), "lost a container: "+p.cache) ||
				!strings.Contains(hint, " --no-start` goes there") || !strings.Contains(hint, "compose -p shop up") {
				t.Errorf("without a container: %v; %s", err, hint)
			}
			page, no := read(t, p.ws, "www/index.html"), false
			write(t, p.ws, "www/index.html", "broken")
			if _, err = d.Rollback(t.Context(), root, "shop", live.ID, ipc.RollbackRequest{Start: &no}, nil); err != nil || read(t, p.ws, "www/index.html") != page {
				t.Errorf("without a container, and with nothing to be started: %v", err)
			}
			if p.Run(t, string(kind), "inspect", "-f", "{{.Id}}", p.web) != strings.Fields(before)[0] {
				t.Error("the web server is another one")
			}
			if _, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{}); errs.KindOf(err) != errs.NotFound || !strings.Contains(fmt.Sprint(err), "lost a container: "+p.cache) {
				t.Errorf("fork: %v", err)
			}
		})
	}
}
