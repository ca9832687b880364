//go:build !cgo || !libvirt_dlopen

package virt

import "mulligan/errs"

// Dial returns the error that this build cannot connect to libvirt.
func Dial(string) (Hypervisor, error) {
	return nil, errs.New(errs.Unsupported, "connect to libvirt", "this mulligand was built without cgo and cannot reach libvirt").
		WithHint("build it with CGO_ENABLED=1 -tags libvirt_dlopen, or register the app without a domain")
}
