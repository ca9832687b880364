package virt

import (
	"net/url"
	"os"
	"strings"

	"mulligan/errs"
)

const onlyLocal = `use a libvirt of this host, over its socket: qemu:///system, or qemu:///system?socket=/PATH`

// LocalURI returns an error for a URI that is not a socket of this host: one that names another host, or a transport that could
// lead to another host.
func LocalURI(uri string) error {
	u, err := url.Parse(uri)
	if err != nil {
		return errs.New(errs.Invalid, "", "%q is not a URI of libvirt's", uri).WithHint(onlyLocal)
	}
	_, transport, _ := strings.Cut(u.Scheme, "+")
	switch {
	case transport != "" && transport != "unix":
		return errs.New(errs.Unsupported, "", "%s reaches libvirt by %s, which may lead to another host; mulligan captures disks of this host only", uri, transport).WithHint(onlyLocal)
	case u.Host != "":
		return errs.New(errs.Unsupported, "", "%s names the host %s; mulligan captures disks of this host only", uri, u.Host).WithHint(onlyLocal)
	}
	return nil
}

// SameHost returns an error if theirs, the name of libvirt's host, is not the name of this host, because a socket can be
// forwarded to another host. The two names may differ in the domain.
func SameHost(uri, theirs string) error {
	ours, err := os.Hostname()
	if err != nil {
		return errs.Wrap(errs.Failed, "", err)
	}
	if strings.EqualFold(FirstLabel(ours), FirstLabel(theirs)) {
		return nil
	}
	return errs.New(errs.Unsupported, "", "the libvirt at %s runs on the host %s, and mulligand on %s; mulligan captures disks of its own host only", uri, theirs, ours).
		WithHint("%s; or run mulligand on %s", onlyLocal, theirs)
}

// FirstLabel returns the name of a host without its domain.
func FirstLabel(name string) string {
	label, _, _ := strings.Cut(name, ".")
	return label
}
