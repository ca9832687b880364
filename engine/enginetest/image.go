package enginetest

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
)

// makeImage imports the one image. The request is made by hand: it must not depend on what is tested.
func (h *Host) makeImage() error {
	var root bytes.Buffer
	w := tar.NewWriter(&root)
	add := func(name string, kind byte, mode int64, link, text string) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: kind, Mode: mode, Linkname: link, Size: int64(len(text))}); err != nil {
			return err
		}
		_, err := w.Write([]byte(text))
		return err
	}
	for _, d := range []string{"usr", "etc", "run", "proc", "sys", "dev", "root", "data", "var", "var/run"} {
		if err := add(d+"/", tar.TypeDir, 0o755, "", ""); err != nil {
			return err
		}
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := add(l, tar.TypeSymlink, 0o777, "usr/"+l, ""); err != nil {
			return err
		}
	}
	for _, f := range [][2]string{
		{"etc/passwd", "root:x:0:0::/root:/bin/sh\npostgres:x:999:999::/data:/bin/sh\nredis:x:998:998::/data:/bin/sh\n"},
		{"etc/group", "root:x:0:\npostgres:x:999:\nredis:x:998:\n"},
	} {
		if err := add(f[0], tar.TypeReg, 0o644, "", f[1]); err != nil {
			return err
		}
	}
	if err := add("tmp/", tar.TypeDir, 0o1777, "", ""); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	api := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.Socket)
	}}}
	defer api.CloseIdleConnections()
	// Podman takes no notice of a tag of its own.
	res, err := api.Post("http://engine/v1.41/images/create?fromSrc=-&repo="+url.QueryEscape(Image), "application/x-tar", &root)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var said bytes.Buffer
	if _, err := said.ReadFrom(res.Body); err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s (%v)", res.Status, said.Bytes(), err)
	}
	return nil
}
