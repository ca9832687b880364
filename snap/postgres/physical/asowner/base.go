package asowner

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/postgres/physical/wal"
)

// BaseQuery asks for the base backup from which a marker can be replayed.
type BaseQuery struct {
	Home  Home
	Bases []wal.Base
	TLI   wal.Timeline // the marker's position
	LSN   wal.LSN
	Size  wal.Segments
	// Conf is set in a capture of the live state, and asks for the configuration too. *Conf is the digest of the configuration
	// that the daemon has, or "".
	Conf   *string
	System string // if Conf is set: the system identifier of the server's cluster
	Apart  bool   // the owner cannot make links to log files of the live server
}

// BaseFound is the answer to a BaseQuery.
type BaseFound struct {
	Base string // its ID
	Same bool   // the daemon has the configuration already; otherwise Conf is the configuration
	Conf map[string][]byte
	// Links are the log files to which links are missing, if the owner cannot make them.
	Links []string
}

// FindBase finds the base backup for a marker. It returns an error unless all of the log between the two exists. It also reads
// the configuration, so that a capture needs only one call.
var FindBase = privsep.Define("physical.findBase", func(_ context.Context, q BaseQuery) (found BaseFound, err error) {
	if q.Conf != nil {
		if err := q.Home.whole(q.System); err != nil {
			return found, err
		}
	}
	if found.Base, found.Links, err = q.find(); err != nil || q.Conf == nil {
		return found, err
	}
	found.Conf, err = readConf(q.Home.Data)
	if err == nil && ConfDigest(found.Conf) == *q.Conf {
		found.Same, found.Conf = true, nil
	}
	return found, err
})

func (q BaseQuery) find() (id string, links []string, err error) {
	data, err := q.Home.history(q.TLI)
	if err != nil {
		return "", nil, err
	}
	legs, err := wal.LegsOf(q.TLI, data)
	if err != nil {
		return "", nil, err
	}
	b, err := wal.Choose(q.Bases, legs, q.TLI, q.LSN)
	if err != nil {
		return "", nil, err
	}
	if n, err := Inode(filepath.Join(q.Home.Store, "bases", b.ID)); err != nil || n == 0 {
		return "", nil, errs.Also(errs.New(errs.Corrupt, "", "base copy %s is gone", b.ID).WithHint("use another checkpoint"), err)
	}
	names := q.Size.Names(wal.Path(legs, b.TLI, b.Start, q.LSN))
	if err := q.Home.present(names, q.Size); err != nil || q.Conf == nil {
		return b.ID, nil, err
	}
	links, err = q.Home.link(names, q.Size, q.Apart)
	return b.ID, links, err
}

// whole returns an error unless the data folder is that of the running server, which continues for a while after its folder is
// removed or replaced. whole runs as the owner.
func (h Home) whole(system string) error {
	lost := errs.New(errs.Failed, "", "the server of cluster %s runs, and %s is no longer its data folder", system, h.Data).
		WithHint("put the folder back")
	f, err := openRegular(filepath.Join(h.Data, "global", "pg_control"), unix.O_NOFOLLOW)
	if err != nil {
		return errs.Also(lost, err)
	}
	defer f.Close() // it was only read
	var id [8]byte  // the first field (catalog/pg_control.h, ControlFileData)
	if _, err := io.ReadFull(f, id[:]); err != nil || strconv.FormatUint(binary.NativeEndian.Uint64(id[:]), 10) != system {
		return errs.Also(lost, err)
	}
	if info, err := os.Lstat(filepath.Join(h.Data, "PG_VERSION")); err != nil || !info.Mode().IsRegular() {
		return errs.Also(errs.New(errs.Failed, "", "%s has no file PG_VERSION, without which its server cannot be started again", h.Data).
			WithHint("put the file back"), err)
	}
	return nil
}

// Configured are the configuration files in the data folder. They are not in the log, so each marker keeps a copy.
var Configured = []string{"postgresql.conf", "postgresql.auto.conf", "pg_hba.conf", "pg_ident.conf"}

// maxConf is the largest size in bytes of a configuration file.
const maxConf = 4 << 20

// ReadConf reads the configuration files in a data folder.
var ReadConf = privsep.Define("physical.readConf", func(_ context.Context, dataDir string) (map[string][]byte, error) {
	return readConf(dataDir)
})

// readConf does the work of ReadConf.
func readConf(dataDir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, name := range Configured {
		data, err := readBounded(filepath.Join(dataDir, name), maxConf, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the file is in another folder, as on Debian
		} else if err != nil {
			return nil, err
		}
		files[name] = data
	}
	return files, nil
}

// ConfDigest returns a digest that identifies a configuration.
func ConfDigest(files map[string][]byte) string {
	data, err := json.Marshal(files)
	if err != nil {
		panic(err) // bytes always marshal
	}
	sum := blake3.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
