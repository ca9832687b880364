//go:build !cgo || !libvirt_dlopen

package virt

import "mulligan/errs"

// dial says that this build cannot reach libvirt.
func Dial(string) (Hypervisor, error) {
	return nil, errs.New(errs.Unsupported, "connect to libvirt", "this mulligand was built without cgo and cannot reach libvirt").
		WithHint("build it with CGO_ENABLED=1 -tags libvirt_dlopen, or register the app without a domain")
}
