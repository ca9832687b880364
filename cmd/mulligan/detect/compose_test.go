package detect

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/ipc"
)

const compose = `# the stack
version: "3"
services:
  web:
    build: .
    ports:
      - "8080:80"
  db:
    image: postgres:16-alpine  # pinned
    environment:
      POSTGRES_USER: shop
      POSTGRES_PASSWORD: ${DB_PASSWORD:-pw}
      POSTGRES_DB: "store"
    ports:
    - "127.0.0.1:5433:5432"
    healthcheck:
      test: ["CMD", "pg_isready"]
  maria:
    image: mariadb
    environment:
      - MARIADB_ROOT_PASSWORD=s3cret
      - MARIADB_DATABASE=books
    ports: 
      - 3307:3306/tcp
  cache:
    image: 'redis'
    ports:
      - "$CACHE_PORT:6379"
  hidden:
    image: mysql:8
  other:
    image: postgres
    environment: &common {POSTGRES_USER: shop}
    ports: ["5432:5432"]
  long:
    image: valkey
    ports: [{target: 6379, published: "6381", host_ip: 127.0.0.1}]
  merged:
    image: postgis/postgis
    environment: {<<: *common, POSTGRES_DB: maps}
    ports: ["5434:5432"]
  odd:
    image: [postgres]
    ports: 5432
volumes:
  data:
`

func TestDetectCompose(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "docker-compose.yml", compose)
	write(t, dir, ".env", "DB_PASSWORD=hunter2\nCACHE_PORT=6380\nDATABASE_URL=mysql://u@localhost:3307/books\n")
	found, err := App(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, db := range found.Databases {
		got = append(got, db.Name+" "+db.DSN+" "+db.Source)
	}
	want := []string{
		"books mysql://u@localhost:3307/books DATABASE_URL in .env",
		"store postgres://shop:hunter2@127.0.0.1:5433/store service db in docker-compose.yml",
		"redis redis://127.0.0.1:6380 service cache in docker-compose.yml",
		"shop postgres://shop@127.0.0.1:5432/shop service other in docker-compose.yml",
		"redis-2 redis://127.0.0.1:6381 service long in docker-compose.yml",
		"maps postgres://shop@127.0.0.1:5434/maps service merged in docker-compose.yml",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %q", got)
	}
	if said := strings.Join(found.Unprotected, "\n"); !strings.Contains(said, "service hidden in docker-compose.yml: its environment names none") {
		t.Errorf("said: %s", said)
	}
}

func TestDetectProject(t *testing.T) {
	for _, tt := range []struct{ folder, env, text, want string }{
		{"My Shop", "", "services: {web: {volumes: ['./www:/www', 'uploads:/data:ro', {type: volume, source: more, target: /m}, /tmp/x, '/srv:/srv']}}", "myshop [more uploads]"},
		{"x", "", "name: shop\nservices: {web: {}}", "shop []"},
		{"x", "COMPOSE_PROJECT_NAME=other", "name: shop\nservices: {web: {}}", "other []"},
		// A database with a port is captured through its server, one without by its volume.
		{"x", "", "services: {web: {volumes: ['up:/data']}, db: {image: 'postgres:16', ports: ['5432:5432'], volumes: ['rows:/data']}}", "x [up]"},
		{"x", "", "services: {web: {}, db: {image: 'postgres:16', volumes: ['rows:/data']}}", "x [rows]"},
		{"x", "", "services: {db: {image: 'postgres:16', ports: ['5432:5432'], volumes: ['rows:/data']}}", " []"},
		{"x", "", "services: {db: {image: 'postgres:16', environment: {POSTGRES_USER: u, POSTGRES_DB: d}}}", "x [] postgres://u@db:5432/d"}, // without a volume it is captured through its server
		{"x", "DATABASE_URL=postgres://u@db/d", "services: {web: {}, db: {image: 'postgres:16', volumes: ['rows:/data']}}", "x [] postgres://u@db/d"},
		{"x", "DATABASE_URL=postgres://u@mine/d", "services: {mine: {build: ., volumes: ['rows:/data']}}", "x [] postgres://u@mine/d"},
		{"x", "", "services: {c: {image: redis, ports: ['6379:6379'], volumes: ['keys:/data']}}", "x [keys]"},
	} {
		dir := filepath.Join(t.TempDir(), tt.folder)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "compose.yml", tt.text)
		write(t, dir, ".env", tt.env)
		found, err := App(t.Context(), dir)
		got := fmt.Sprint(found.Project.Name, " ", found.Project.Volumes)
		for _, db := range found.Databases {
			if db.Inside {
				got += " " + db.DSN
			}
		}
		if err != nil || got != tt.want {
			t.Errorf("%s: found %s (%v), want %s", tt.text, got, err, tt.want)
		}
	}
}

// Without its containers an app keeps its databases, except those of the findings that are reached in their containers: a person may have
// named or left out others.
func TestWithoutContainers(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "compose.yml", "name: x\nservices: {web: {volumes: ['up:/data']}, db.invalid: {image: 'postgres:16'}}")
	write(t, dir, ".env", "DATABASE_URL=postgres://u@db.invalid/inside\nREDIS_URL=redis://127.0.0.1:1\n")
	found, err := App(t.Context(), dir)
	if err != nil || len(found.Databases) != 2 || !found.Databases[0].Inside || found.Databases[1].Inside {
		t.Fatalf("found %+v, %v", found, err)
	}
	db := func(name, dsn string) ipc.Database { return ipc.Database{Name: name, Driver: "postgres", DSN: dsn} }
	app := ipc.App{Unit: "compose:x", Engine: "/run/e.sock", Volumes: []ipc.Volume{{Name: "up"}, {Name: "more"}}, Databases: []ipc.Database{
		db("named", "postgres://u@db.invalid/named"), db("renamed", "postgres://u@db.invalid/inside"),
	}}
	if got, want := found.ContainerArguments(app), " unit=compose:x engine=/run/e.sock volumes=up,more database=postgres://u@db.invalid/inside"; got != want {
		t.Errorf("the arguments are %q", got)
	}
	without := found.WithoutContainers(t.Context(), app)
	if without.Unit != "" || without.Engine != "" || len(without.Volumes) > 0 || !slices.Equal(without.Databases, app.Databases[:1]) {
		t.Errorf("without containers: %+v", without)
	}
}

// Detection names a compose file that it cannot read.
func TestDetectBrokenCompose(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "compose.yaml", "services:\n\tdb: {")
	found, err := App(t.Context(), dir)
	if err != nil || !slices.Equal(found.Unprotected, []string{"databases of compose.yaml: it could not be read"}) {
		t.Errorf("%q, %v", found.Unprotected, err)
	}
}

func FuzzParseCompose(f *testing.F) {
	f.Add(compose)
	f.Add("services:\n- a\n  b: c\n")
	f.Add("services: &s {a: {environment: *s, ports: [*s]}}")
	f.Add("services: {a: }")
	f.Fuzz(func(t *testing.T, data string) {
		var found Findings
		_, services, _ := parseCompose([]byte(data)) // what is no YAML has none
		for _, s := range services {
			found.addService(s, map[string]string{"A": "1"}, "x", nil)
		}
	})
}
