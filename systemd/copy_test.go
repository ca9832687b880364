package systemd_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/systemd"
	"mulligan/testkit"
)

// A web server whose path and port are fixed has two copies: each serves its own folder on an address of its own, writes to its own
// /tmp, and cannot reach the original.
func TestCopies(t *testing.T) {
	testkit.Need(t, "python3")
	ctx, h, m := setup(t)
	m = withRoot(t, m, h.Address, h.Root())
	base, err := os.MkdirTemp("/var/tmp", "mulligan-copy test%") // with what a unit file must quote
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	at := filepath.Join(base, "shop")
	port := testkit.Port(t)
	folders := []string{at, filepath.Join(base, "one"), filepath.Join(base, "two")}
	for _, dir := range folders {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"who": filepath.Base(dir), "env": "WHO=" + filepath.Base(dir) + "\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	unitPath := strings.ReplaceAll(at, "%", "%%")
	h.WriteUnit(t, "shop@.service", fmt.Sprintf("[Service]\nType=exec\nWorkingDirectory=%s\nEnvironmentFile=%[1]s/env\nEnvironment=INSTANCE=%%i\n"+
		`ExecStart=/bin/sh -c 'echo "$WHO $INSTANCE $EXTRA" >said; echo "$WHO" >/tmp/mulligan-copy-%[2]d; exec python3 -m http.server --bind 127.0.0.1 %[2]d'`+"\n", unitPath, port))
	if err := os.MkdirAll(filepath.Join(h.UnitDir, "shop@7.service.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(fmt.Sprintf("/tmp/mulligan-copy-%d", port)) })
	h.WriteUnit(t, "shop@7.service.d/extra.conf", "[Service]\nEnvironment=EXTRA=more\n")
	if err := m.Unit("shop@7.service").Start(ctx); err != nil {
		t.Fatal(err)
	}
	before := unitFiles(t, h.Root())
	var copies []systemd.Copy
	for _, dir := range folders[1:] {
		c := systemd.Copy{
			Of: "shop@7.service", Name: systemd.CopyPrefix + filepath.Base(dir) + "@7.service", Description: "100% a copy", Folder: dir, At: at,
			Ports: []systemd.CopyPort{{Port: port, Address: fmt.Sprintf("127.0.0.1:%d", testkit.Port(t))}},
		}
		for range 2 { // again is fine
			if err := m.WriteCopy(ctx, c); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Unit(c.Name).Start(ctx); err != nil {
			t.Fatalf("%v\n%s", err, h.Journal(c.Name))
		}
		copies = append(copies, c)
	}
	for i, address := range []string{fmt.Sprintf("127.0.0.1:%d", port), copies[0].Ports[0].Address, copies[1].Ports[0].Address} {
		want := filepath.Base(folders[i])
		if got := fetch(t, "http://"+address+"/who"); got != want {
			t.Errorf("%s says %q, want %q", address, got, want)
		}
		if got, want := fetch(t, "http://"+address+"/said"), want+" 7 more\n"; got != want {
			t.Errorf("%s was started with %q, want %q", address, got, want)
		}
	}
	// A copy that is restarted is reached at the same address.
	if err := m.Unit(copies[0].Name).Stop(ctx); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the address of a copy that is stopped is free", func() bool {
		c, err := net.Dial("tcp", copies[0].Ports[0].Address)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	taken, err := net.Listen("tcp", copies[0].Ports[0].Address)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Unit(copies[0].Name).Start(ctx); errs.KindOf(err) != errs.Failed || !strings.Contains(err.Error(), "dependency") {
		t.Errorf("the start of a copy whose address is taken: %v", err)
	}
	taken.Close()
	if err := m.Unit(copies[0].Name).Start(ctx); err != nil {
		t.Fatal(err)
	}
	if got := fetch(t, "http://"+copies[0].Ports[0].Address+"/who"); got != "one" {
		t.Errorf("after a restart, the copy says %q", got)
	}
	if out, err := os.ReadFile(fmt.Sprintf("/tmp/mulligan-copy-%d", port)); err != nil || strings.TrimSpace(string(out)) != "shop" {
		t.Errorf("the original's file in /tmp says %q, %v", out, err)
	}
	for _, c := range copies {
		if err := m.Unit(c.Name).Stop(ctx); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := m.RemoveCopy(ctx, c.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if after := unitFiles(t, h.Root()); after != before {
		t.Errorf("left behind: %s\nbefore: %s", after, before)
	}
	if out, err := h.Exec("systemctl", "list-units", "--all", "--plain", "--no-legend", systemd.CopyPrefix+"*"); err != nil || strings.TrimSpace(string(out)) != "" {
		t.Errorf("units are left: %s, %v", out, err)
	}
}

// TestRemoveCutShort removes a copy whose files a crash kept from being written.
func TestRemoveCutShort(t *testing.T) {
	ctx, h, m := setup(t)
	m = withRoot(t, m, h.Address, h.Root())
	folder := filepath.Join(h.Root(), "/run/systemd/system")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	before := unitFiles(t, h.Root())
	copy := systemd.CopyPrefix + "short"
	for _, name := range []string{copy + ".service.tmp", copy + "-inside.socket.tmp", copy + "-inside.service"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.CloseInside(ctx, copy+".service"); err != nil {
		t.Error(err)
	}
	if err := m.RemoveCopy(ctx, copy+".service"); err != nil {
		t.Error(err)
	}
	if after := unitFiles(t, h.Root()); after != before {
		t.Errorf("left behind: %s\nbefore: %s", after, before)
	}
}

// What a service shares with its copies is refused by name.
func TestNoCopies(t *testing.T) {
	ctx, h, m := setup(t)
	m = withRoot(t, m, h.Address, h.Root())
	for line, want := range map[string]string{
		"RuntimeDirectory=shop": "the folder shop", "StateDirectory=shop": "the folder shop", "CacheDirectory=shop": "the folder shop",
		"LogsDirectory=shop": "the folder shop", "PIDFile=/run/shop.pid": "PIDFile", "StandardOutput=append:/tmp/log": "output in a file",
		"StandardError=file:/tmp/log": "output in a file", "RootDirectory=/": "root folder", "BusName=org.example.Shop": "BusName",
		"NetworkNamespacePath=/proc/self/ns/net": "NetworkNamespacePath",
	} {
		h.WriteUnit(t, "shop.service", "[Service]\nExecStart=/bin/sleep 1000\n"+line+"\n")
		if line == "RootDirectory=/" {
			h.WriteUnit(t, "shop.service", "[Service]\nExecStart=/bin/sleep 1000\nRootDirectory=/srv\n")
		}
		err := m.CheckCopy(ctx, "shop.service")
		if errs.KindOf(err) != errs.Unsupported || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	h.WriteUnit(t, "shop.socket", "[Socket]\nListenStream=/run/shop.sock\n")
	h.WriteUnit(t, "shop.service", "[Unit]\nRequires=shop.socket\n[Service]\nExecStart=/bin/sleep 1000\n")
	if err := m.CheckCopy(ctx, "shop.service"); errs.KindOf(err) != errs.Unsupported || !strings.Contains(err.Error(), "shop.socket") {
		t.Errorf("a service of a socket: %v", err)
	}
	if err := m.CheckCopy(ctx, "missing.service"); err == nil {
		t.Error("a service that does not exist can be copied")
	}
	if err := m.RemoveCopy(ctx, "shop.service"); err == nil {
		t.Error("a unit that is no copy was removed")
	}
}

// withRoot connects anew to a manager that has another root folder.
func withRoot(t *testing.T, m *systemd.Manager, address, root string) *systemd.Manager {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := systemd.Connect(t.Context(), systemd.Options{Address: address, Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// fetch asks until there is an answer.
func fetch(t *testing.T, url string) (text string) {
	t.Helper()
	testkit.Eventually(t, url+" answers", func() bool {
		res, err := http.Get(url) //nolint:gosec // of this machine
		if err != nil {
			return false
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		text = string(b)
		return err == nil && res.StatusCode == http.StatusOK
	})
	return text
}

// unitFiles lists the units that are gone after a reboot.
func unitFiles(t *testing.T, root string) string {
	t.Helper()
	list, err := filepath.Glob(root + "/run/systemd/system/*")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, "\n")
}
