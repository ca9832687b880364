//go:build cgo && libvirt_dlopen

package virt

/*
#cgo LDFLAGS: -Wl,--wrap=dlopen
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

void *__real_dlopen(const char *name, int flags);

// The Go package libvirt opens its library at the start of each process, which takes longer than the rest of the start. The processes
// that the daemon starts from its own program (packages privsep and daemon/isolate) need none, and begin with these names.
static const char *const helpers[] = {
	"mulligand-worker", "mulligand-fork", "mulligand-inside", "mulligand-host",
};

void *__wrap_dlopen(const char *name, int flags)
{
	for (size_t i = 0; i < sizeof helpers / sizeof *helpers; i++)
		if (name != NULL && strncmp(name, "libvirt", 7) == 0 && strcmp(program_invocation_name, helpers[i]) == 0)
			return NULL;
	return __real_dlopen(name, flags);
}
*/
import "C"
