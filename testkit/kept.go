package testkit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// CacheDir returns the folder that MULLIGAN_TEST_CACHE names, or mulligan-test in the user's cache folder. It may not exist.
func CacheDir() (string, error) {
	if dir := os.Getenv("MULLIGAN_TEST_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "mulligan-test"), err
}

// Kept returns a folder of the cache that fill filled once, for all packages and runs. name must change with what fill puts there.
// The folder is filled under another name, so it is complete or absent.
func Kept(name string, fill func(dir string) error) (dir string, err error) {
	root, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(root, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(root, "filling-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	filled := filepath.Join(tmp, "it")
	if err := os.Mkdir(filled, 0o755); err != nil {
		return "", err
	}
	if err := fill(filled); err != nil {
		return "", err
	}
	if err := os.Rename(filled, dir); err != nil && !errors.Is(err, os.ErrExist) { // another process was first
		return "", err
	}
	return dir, nil
}

// Key returns a short text that changes with a program of the host, which may be a link, and with the arguments it gets.
func Key(program string, args ...string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", err
	}
	fi, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.12x", sha256.Sum256(fmt.Append(nil, path, fi.Size(), fi.ModTime().UnixNano(), strings.Join(args, "\x00")))), nil
}

// CopyTree copies a folder with everything below it, as it is, to a path where nothing is.
func CopyTree(from, to string) error {
	if out, err := exec.Command("cp", "-a", "--reflink=auto", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	return nil
}

// MariaDB makes the folder data of a new MariaDB server, whose user root has no password.
func MariaDB(t testing.TB, data string) {
	t.Helper()
	Need(t, "mariadb")
	args := []string{"--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal", "--innodb-log-file-size=8M"}
	key, err := Key("mariadbd", args...)
	must(t, err)
	kept, err := Kept("mariadb-"+key, func(dir string) error {
		tmp := t.TempDir()
		if out, err := exec.Command("mariadb-install-db", append(args, "--datadir="+dir+"/data", "--tmpdir="+tmp)...).CombinedOutput(); err != nil {
			return fmt.Errorf("mariadb-install-db: %w: %s", err, out)
		}
		return nil
	})
	must(t, err)
	must(t, CopyTree(filepath.Join(kept, "data"), data))
}

// MariaDBServer returns the arguments of the mariadbd that serves the folder data at socket. Its temporary files are beside data: a server
// that starts removes those which others have in its folder for them.
func MariaDBServer(data, socket string, more ...string) []string {
	return append([]string{"--no-defaults", "--datadir=" + data, "--tmpdir=" + filepath.Dir(data), "--socket=" + socket, "--user=root",
		"--innodb-buffer-pool-size=32M"}, more...)
}

// MariaDBAnswers returns a function that reports whether a server answers at socket.
func MariaDBAnswers(socket string) func() bool {
	return func() bool {
		return exec.Command("mariadb-admin", "--no-defaults", "--socket="+socket, "--user=root", "ping").Run() == nil
	}
}
