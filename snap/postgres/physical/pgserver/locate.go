package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
)

// Place is the information that Locate gets from a data folder.
type Place struct {
	Bin   string       // folder of the programs for the server's version
	Owner privsep.User // the user that the server runs as: the folder's owner
}

// places are the folders where distributions install the programs; %s stands for the version.
var places = []string{"/usr/lib/postgresql/%s/bin", "/usr/pgsql-%s/bin", "/usr/lib/postgresql%s/bin", "/usr/local/pgsql/bin", "/usr/bin"}

var versionSyntax = regexp.MustCompile(`^[1-9][0-9]$`)

// Locate finds the owner and the programs of the cluster in dataDir. The server need not run.
func Locate(ctx context.Context, dataDir string) (p Place, err error) {
	const op = "look at data folder"
	var st unix.Stat_t
	if err := unix.Lstat(dataDir, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return p, errs.New(errs.NotFound, op, "%s is not a folder", dataDir).WithHint("name the cluster's data folder itself: psql -c 'SHOW data_directory'")
	}
	if st.Uid == 0 {
		return p, errs.New(errs.Invalid, op, "%s belongs to root, and no server runs as root", dataDir).WithHint("name the cluster's data folder")
	}
	p.Owner = privsep.User{UID: int(st.Uid), GID: int(st.Gid)}
	version, err := VersionOf(ctx, p.Owner, dataDir)
	if err != nil {
		return p, errs.Wrap(errs.Failed, op, err)
	}
	for _, pattern := range places {
		p.Bin = strings.ReplaceAll(pattern, "%s", version)
		if canRun(ctx, p.Bin, version) {
			return p, nil
		}
	}
	return p, errs.New(errs.NotFound, op, "the programs of PostgreSQL %s are not on this host", version).WithHint("apt-get install postgresql-%s", version)
}

// VersionOf returns the major version in the file PG_VERSION. It reads the file as the owner, because the owner may have put
// anything there.
func VersionOf(ctx context.Context, owner privsep.User, dataDir string) (string, error) {
	data, err := owner.ReadFile(ctx, filepath.Join(dataDir, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", errs.New(errs.NotFound, "", "%s is not the data folder of a cluster", dataDir).WithHint("name the folder that holds PG_VERSION")
	} else if err != nil {
		return "", err
	}
	version := strings.TrimSpace(string(data))
	if !versionSyntax.MatchString(version) {
		return "", errs.New(errs.Unsupported, "", "the cluster in %s has version %.20q", dataDir, version).WithHint("use mode = logical")
	}
	return version, nil
}

// canRun reports whether all necessary programs are in bin, and only root can change them. If the name of the folder has no
// version, canRun asks a program for its version.
func canRun(ctx context.Context, bin, version string) bool {
	for _, name := range []string{"postgres", "pg_controldata", "pg_waldump", "pg_ctl"} {
		info, err := os.Stat(filepath.Join(bin, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o022 != 0 || info.Sys().(*syscall.Stat_t).Uid != 0 {
			return false
		}
	}
	if strings.Contains(bin, version) {
		return true
	}
	out, err := Programs{Tools: Installed{bin, privsep.Self}}.Output(ctx, "pg_controldata", "--version")
	return err == nil && strings.Contains(out, fmt.Sprintf(" %s.", version))
}
