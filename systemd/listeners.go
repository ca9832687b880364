package systemd

import (
	"net"

	"github.com/coreos/go-systemd/v22/activation"

	"mulligan/errs"
)

// Listeners returns the sockets that the manager opened for this process, by their FileDescriptorName, which is the name of the
// socket unit by default. The map is empty if there are none, and on a second call.
func Listeners() (map[string][]net.Listener, error) {
	named := map[string][]net.Listener{}
	var failed error
	for _, f := range activation.Files(true) {
		l, err := net.FileListener(f)
		if err != nil {
			failed = errs.Wrap(errs.Invalid, "take over socket "+f.Name(), err)
		} else {
			named[f.Name()] = append(named[f.Name()], l)
		}
		if err := f.Close(); err != nil && failed == nil {
			failed = errs.Wrap(errs.Internal, "take over socket "+f.Name(), err)
		}
	}
	if failed == nil {
		return named, nil
	}
	for _, list := range named {
		for _, l := range list {
			l.Close()
		}
	}
	return nil, failed
}
