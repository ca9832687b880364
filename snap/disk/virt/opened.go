//go:build cgo && libvirt_dlopen

package virt

/*
#cgo LDFLAGS: -Wl,--wrap=dlopen -Wl,--wrap=dlsym
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

// The Go package libvirt opens its library when a process starts, to set a function for errors. That takes longer than the rest of the
// start, and most processes of the daemon's program never speak to libvirt. So the library is opened when its first function is called;
// until then a handle stands for it. Functions of the library are looked up by that handle.

#define LIBRARY "libvirt.so.0"
#define SET_ERROR_FUNC "virSetErrorFunc"

void *__real_dlopen(const char *name, int flags);
void *__real_dlsym(void *handle, const char *name);

typedef void (*set_error_func)(void *data, void (*handler)(void *, void *));

static char later; // its address is the handle
static void *nothing;
static void *error_data;
static void (*error_handler)(void *, void *);

static void keep_error_func(void *data, void (*handler)(void *, void *))
{
	error_data = data;
	error_handler = handler;
}

// opened returns the library's handle, or NULL, and then dlerror says why.
static void *opened(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static void *library;
	pthread_mutex_lock(&mutex);
	if (library == NULL && (library = __real_dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL)) != NULL) {
		set_error_func set = (set_error_func)__real_dlsym(library, SET_ERROR_FUNC);
		if (set != NULL)
			set(error_data, error_handler);
	}
	pthread_mutex_unlock(&mutex);
	return library;
}

void *__wrap_dlopen(const char *name, int flags)
{
	return name != NULL && strcmp(name, LIBRARY) == 0 ? &later : __real_dlopen(name, flags);
}

void *__wrap_dlsym(void *handle, const char *name)
{
	if (handle != &later)
		return __real_dlsym(handle, name);
	if (strcmp(name, SET_ERROR_FUNC) == 0)
		return (void *)keep_error_func;
	if (strcmp(name, "virConnectAuthPtrDefault") == 0)
		return &nothing; // a variable for logins that ask the user, of which the daemon has none
	void *library = opened();
	return library == NULL ? NULL : __real_dlsym(library, name);
}
*/
import "C"
