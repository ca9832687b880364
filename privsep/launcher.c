// The launcher: a process of the daemon's own program that becomes a command of a user's.
//
// It runs before anything else of the program does, also before Go's runtime: that, the initialization of some hundred
// packages and their libraries would take most of the time of a short command. It does nothing but system calls in their order. launch.go writes the order that it reads, and understands what it reports.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <grp.h>
#include <unistd.h>

static const char launcher_name[] = "mulligand-launch"; // LauncherName in privsep.go

// The descriptors with which a launcher starts, as in launch.go.
enum { order_fd = 3, status_fd = 4, files_fd = 5 };

// header is the beginning of an order. The groups and then the texts follow: path, folder, arguments, environment, each with a zero byte at
// its end.
struct header {
	uint32_t uid, gid, groups, no_new_privs, signal, parent, files, args, env;
};

static int status = status_fd; // the descriptor of the status pipe

// fail reports a step that failed, and ends the process.
static void fail(const char *step) {
	char text[64];
	int n = snprintf(text, sizeof text, "%s %d", step, errno);
	_exit(write(status, text, n) == n ? 2 : 3);
}

static void must(int result, const char *step) {
	if (result < 0)
		fail(step);
}

// fail_order reports an order that cannot be read.
static void fail_order(void) {
	errno = EBADMSG;
	fail("order");
}

// next_text returns the text at *at, and moves *at behind it. The texts end at end.
static char *next_text(char **at, char *end) {
	char *text = *at, *zero = memchr(text, 0, end - text);
	if (!zero)
		fail_order();
	*at = zero + 1;
	return text;
}

// next_texts returns n texts as execve takes them.
static char **next_texts(uint32_t n, char **at, char *end) {
	if (n > end - *at)
		fail_order();
	char **list = calloc(n + 1, sizeof *list);
	if (!list)
		fail("calloc");
	for (uint32_t i = 0; i < n; i++)
		list[i] = next_text(at, end);
	return list;
}

// drop gives this process the ids and groups of the order's user for ever, and makes sure that it has no capability left.
static void drop(const struct header *h, const uint32_t *groups) {
	if (h->uid == 0 || h->uid == UINT32_MAX || h->gid == UINT32_MAX)
		fail_order();
	must(setgroups(h->groups, groups), "setgroups");
	must(setresgid(h->gid, h->gid, h->gid), "setresgid");
	must(setresuid(h->uid, h->uid, h->uid), "setresuid");
	uid_t r, e, s;
	must(getresuid(&r, &e, &s), "getresuid");
	struct __user_cap_header_struct which = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];
	must(syscall(SYS_capget, &which, caps), "capget");
	errno = EPERM;
	if (r != h->uid || e != h->uid || s != h->uid)
		fail("setresuid");
	for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
		if (caps[i].effective || caps[i].permitted) // ambient ones are permitted ones
			fail("capabilities");
}

// attach sets what the kernel keeps of a thread. It comes after drop, because changing ids clears the signal.
static void attach(const struct header *h) {
	if (h->no_new_privs)
		must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl");
	if (!h->signal)
		return;
	must(prctl(PR_SET_PDEATHSIG, h->signal, 0, 0, 0), "prctl");
	errno = ESRCH;
	if ((uint32_t)getppid() != h->parent)
		fail("daemon");
}

// arrange moves the command's files down to descriptors 3 and up, and the status pipe above them. What is not the command's closes when
// the command is executed.
static void arrange(uint32_t files) {
	int to = fcntl(status_fd, F_DUPFD_CLOEXEC, files_fd + files);
	must(to, "fcntl");
	status = to;
	for (uint32_t i = 0; i < files; i++)
		must(dup3(files_fd + i, 3 + i, 0), "dup3");
	for (uint32_t fd = 3 + files; fd < files_fd + files; fd++)
		must(fcntl(fd, F_SETFD, FD_CLOEXEC), "fcntl");
}

static void launch(void) {
	must(fcntl(status_fd, F_SETFD, FD_CLOEXEC), "fcntl");
	struct stat st;
	must(fstat(order_fd, &st), "fstat");
	if (st.st_size < (off_t)sizeof(struct header))
		fail_order();
	char *order = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, order_fd, 0);
	if (order == MAP_FAILED)
		fail("mmap");
	const struct header *h = (const struct header *)order;
	char *at = order + sizeof *h, *end = order + st.st_size;
	if (h->groups > (end - at) / sizeof(uint32_t))
		fail_order();
	const uint32_t *groups = (const uint32_t *)at;
	at += h->groups * sizeof(uint32_t);
	char *path = next_text(&at, end), *folder = next_text(&at, end);
	char **args = next_texts(h->args, &at, end), **env = next_texts(h->env, &at, end);

	drop(h, groups);
	attach(h);
	if (*folder)
		must(chdir(folder), "chdir");
	arrange(h->files);
	execve(path, args, env);
	fail("exec");
}

// is_launcher reports whether this process was started as a launcher. A constructor gets no arguments from every C library.
static int is_launcher(void) {
	char name[sizeof launcher_name];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, name, sizeof name);
	if (fd >= 0)
		close(fd);
	return n == sizeof name && memcmp(name, launcher_name, sizeof name) == 0;
}

__attribute__((constructor)) static void start(void) {
	if (is_launcher())
		launch();
}
