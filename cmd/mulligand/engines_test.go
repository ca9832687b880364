package main

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/testkit"
)

// engine starts a server that ends with the test, and waits until ready.
func engine(t *testing.T, ready func() bool, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	if err := testkit.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	eventually(t, program+" is up", ready)
}

// output runs a client of an engine, which must succeed.
func output(t testing.TB, input, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
	return string(out)
}

// testMariaDB rolls a whole app with a MariaDB database back and forward.
func testMariaDB(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "mariadb")
	dir := testkit.TempDir(t)
	socket, data := filepath.Join(dir, "s"), filepath.Join(dir, "data")
	testkit.MariaDB(t, data)
	sql := func(db, text string) string {
		return output(t, text, "mariadb", "--no-defaults", "--socket="+socket, "--user=root", "--batch", "--skip-column-names", db)
	}
	engine(t, testkit.MariaDBAnswers(socket), "mariadbd", testkit.MariaDBServer(data, socket, "--skip-networking", "--innodb-flush-log-at-trx-commit=0")...)
	sql("mysql", `CREATE DATABASE shop; CREATE USER shopper@localhost IDENTIFIED BY 'hunter2'; GRANT ALL ON *.* TO shopper@localhost`)
	sql("shop", `CREATE TABLE items (id int AUTO_INCREMENT PRIMARY KEY, name varchar(99) NOT NULL, price int DEFAULT 1);
		CREATE TABLE orders (id int AUTO_INCREMENT PRIMARY KEY, item int, FOREIGN KEY (item) REFERENCES items (id) ON DELETE CASCADE);
		CREATE VIEW dear AS SELECT * FROM items WHERE price > 3;
		INSERT INTO items (name, price) SELECT concat('item ', seq), seq % 7 FROM seq_1_to_300;
		INSERT INTO orders (item) SELECT 1 + seq % 300 FROM seq_1_to_1000`)

	d := startDaemon(t)
	a := newApp(t, d, 50)
	d.must("app", "set", "database=main=mysql://shopper:hunter2@localhost/shop?socket="+socket, "--app", "shop")
	disasters := []string{
		`DROP VIEW dear; ALTER TABLE items DROP COLUMN price`, `UPDATE items SET name = 'same'`, `DROP TABLE orders`, `DROP DATABASE shop`,
		`SET foreign_key_checks = 0; TRUNCATE items`, `ALTER TABLE items ADD COLUMN half int; UPDATE items SET half = 1; RENAME TABLE orders TO orders_new`,
	}
	cause := func(n int) {
		if strings.HasPrefix(disasters[n], "DROP DATABASE") {
			sql("mysql", disasters[n])
		} else {
			sql("shop", disasters[n])
		}
	}
	a.survive(t, disasters, 3, cause, func() string {
		return output(t, "", "sh", "-c", fmt.Sprintf(`mariadb-dump --no-defaults --socket=%s --user=root --skip-dump-date --skip-extended-insert shop 2>/dev/null || echo none`, socket))
	})
	d.keepsSecret(t, "hunter2")
}

// testRedis rolls a whole app with a Redis server back and forward.
func testRedis(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "redis")
	dir := t.TempDir()
	_, port, err := net.SplitHostPort(freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	cli := func(input string) string {
		return output(t, input, "redis-cli", "-h", "127.0.0.1", "-p", port, "--no-auth-warning", "-a", "hunter2")
	}
	engine(t, func() bool {
		out, err := exec.Command("redis-cli", "-h", "127.0.0.1", "-p", port, "--no-auth-warning", "-a", "hunter2", "PING").Output()
		return err == nil && strings.TrimSpace(string(out)) == "PONG"
	}, "redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--requirepass", "hunter2", "--logfile", filepath.Join(dir, "log"))
	var fill strings.Builder
	for i := range 300 {
		fmt.Fprintf(&fill, "SET item:%d 'name %d'\nHSET order:%d item %d\nRPUSH queue %d\n", i, i, i, i%7, i)
	}
	cli(fill.String())

	d := startDaemon(t)
	a := newApp(t, d, 50)
	d.must("app", "set", "database=main=redis://:hunter2@127.0.0.1:"+port, "--app", "shop")
	disasters := []string{"FLUSHALL", "DEL queue", "RENAME order:1 order:x\nHDEL order:2 item", "LTRIM queue 0 9\nEXPIRE item:1 90000"}
	a.survive(t, disasters, 3, func(n int) { cli(disasters[n]) }, func() string {
		return cli("EVAL \"local out = {} local keys = redis.call('KEYS', '*') table.sort(keys) for _, k in ipairs(keys) do out[#out+1] = k .. redis.sha1hex(redis.call('DUMP', k)) end return table.concat(out, ' ')\" 0\nDBSIZE")
	})
	d.keepsSecret(t, "hunter2")
}
