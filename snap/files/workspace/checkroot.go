package workspace

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"mulligan/errs"
)

// systemFolders are never a workspace themselves. systemTrees are never a workspace, and neither is any folder below them.
var (
	systemFolders = []string{"/", "/home", "/root", "/var", "/var/lib", "/var/log", "/var/tmp", "/var/cache", "/tmp", "/opt",
		"/srv", "/mnt", "/media", "/usr", "/usr/local", "/run", "/run/user", "/snap", "/nix", "/dev/shm"}
	systemTrees = []string{"/proc", "/sys", "/dev", "/boot", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64",
		"/usr/bin", "/usr/sbin", "/usr/lib", "/usr/share", "/usr/include", "/var/lib/mulligan"}
)

// CheckRoot returns an error if dir may not be a workspace. dir must be an existing folder, given by its absolute path without
// symbolic links. It must be neither a folder of the system nor a home folder nor a folder that contains a home folder, because a
// restore would take all of that back. Errors are of kind errs.Invalid, errs.NotFound, errs.Denied or errs.Failed.
func CheckRoot(dir string) error {
	const op = "check workspace"
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return errs.New(errs.Invalid, op, "%q is not an absolute, clean path", dir)
	}
	for _, f := range systemFolders {
		if dir == f {
			return refused(op, dir, "is a folder of the system")
		}
	}
	for _, f := range systemTrees {
		if Within(dir, f) && !Within(dir, "/dev/shm") {
			return refused(op, dir, "belongs to the system")
		}
	}
	for _, h := range homes() {
		if dir == h {
			return refused(op, dir, "is a whole home folder")
		}
		if Within(h, dir) {
			return refused(op, dir, "holds the home folder "+h)
		}
	}
	return checkTrue(op, dir)
}

func refused(op, dir, why string) error {
	return errs.New(errs.Denied, op, "%s %s", dir, why).WithHint("name the project's own folder")
}

// checkTrue returns an error unless dir is a folder whose path has no symbolic links.
func checkTrue(op, dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.NotFound, op, "%s is not there", dir).WithHint("check the path")
	}
	if errors.Is(err, os.ErrPermission) {
		return errs.New(errs.Denied, op, "the user that mulligand runs as cannot read %s", dir).
			WithHint("a FUSE filesystem needs the option allow_other or allow_root for that; or protect the folder with your own daemon (`mulligan init`)")
	}
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if real != dir {
		return errs.New(errs.Invalid, op, "%s leads through a symbolic link", dir).WithHint("name it as %s", real)
	}
	st, err := os.Stat(dir)
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if !st.IsDir() {
		return errs.New(errs.Invalid, op, "%s is not a folder", dir)
	}
	return nil
}

// Within reports whether p is dir or lies below dir.
func Within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, strings.TrimRight(dir, "/")+"/")
}

// homes returns $HOME and every home folder in the password file.
func homes() []string {
	out := []string{}
	if h := os.Getenv("HOME"); filepath.IsAbs(h) {
		out = append(out, filepath.Clean(h))
	}
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return out // without a password file, no other homes are known
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) >= 6 && filepath.IsAbs(fields[5]) {
			out = append(out, filepath.Clean(fields[5]))
		}
	}
	return out
}
