package physical

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/blake3"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/session"
	"mulligan/snap/postgres/physical/wal"
)

// bases handles the base backups: copies of the data folder, taken while the server runs. With the log from its start on, a
// base backup can be replayed up to any later marker of its history.
type bases struct {
	store     *store
	records   *records
	server    *server
	failpoint failpoint.Hook
	log       *slog.Logger

	taking  sync.Mutex            // held while a base is taken
	copying atomic.Pointer[place] // start of the base backup under way; nil if there is none
}

// take makes a base backup of the running server ("Making a Base Backup Using the Low Level API" in the server's manual).
func (bs *bases) take(ctx context.Context) error {
	bs.taking.Lock()
	defer bs.taking.Unlock()
	return bs.takeLocked(ctx)
}

// takeLocked does the work of take. The caller must hold taking.
func (bs *bases) takeLocked(ctx context.Context) (err error) {
	c, err := bs.server.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	f, err := bs.server.inspect(ctx, c)
	if err == nil {
		err = bs.server.refuse(ctx, f)
	}
	if err == nil {
		err = bs.store.room(ctx, bs.store.Data)
	}
	if err != nil {
		return err
	}
	began := time.Now()
	b := wal.Base{ID: randomHex(8), Created: began.UTC()}
	dir := bs.store.path("bases", b.ID)
	defer func() {
		if err != nil { // if the removal fails too, the next Sweep does it
			err = errs.Also(err, bs.store.remove(ctx, dir))
		}
	}()
	defer bs.copying.Store(nil)
	list, err := bs.copy(ctx, c, &b, dir)
	if err != nil {
		return err
	}
	sum := blake3.Sum256(list)
	b.Sums = hex.EncodeToString(sum[:])
	if err := bs.failpoint.At("base: record"); err != nil {
		return err
	}
	if err := durable.WriteFile(bs.records.sumsFile(b.ID), list, 0o600); err != nil {
		return err
	}
	bs.log.Debug("base taken", "cluster", bs.records.cluster, "base", b.ID, "timeline", b.TLI, "lsn", b.Stop.String(), "took", time.Since(began).Round(time.Millisecond))
	return bs.records.put("bases", b.ID, b)
}

// copy copies the data folder durably, and returns the checksums of its files.
func (bs *bases) copy(ctx context.Context, c session.Conn, b *wal.Base, dir string) (list []byte, err error) {
	if err := bs.failpoint.At("base: begin"); err != nil {
		return nil, err
	}
	if err := c.Row(ctx, fmt.Sprintf("SELECT pg_backup_start('mulligan %s', true)::text", b.ID), &b.Start); err != nil {
		return nil, err
	}
	if b.TLI, err = c.Timeline(ctx); err != nil {
		return nil, err
	}
	bs.copying.Store(&place{TLI: b.TLI, Start: b.Start})
	if err := bs.failpoint.At("base: copy"); err != nil {
		return nil, err
	}
	if _, err := asowner.Copy.Call(ctx, bs.store.owner, asowner.ClusterCopy{From: bs.store.Data, To: dir, Live: true}); err != nil {
		return nil, err
	}
	var label, spaces string
	if err := c.Row(ctx, "SELECT lsn::text, labelfile, spcmapfile FROM pg_backup_stop(false)", &b.Stop, &label, &spaces); err != nil {
		return nil, err
	}
	if strings.TrimSpace(spaces) != "" {
		return nil, errs.New(errs.Unsupported, "", "the cluster has tablespaces outside its data folder").WithHint("use mode = logical")
	}
	if err := b.ReadLabel(label); err != nil {
		return nil, err
	}
	if _, err := bs.server.ReadControl(ctx, dir); err != nil { // the server may have written the file while it was copied
		return nil, err
	}
	if err := bs.store.arrange(ctx, asowner.Arrangement{Dir: dir, Files: map[string][]byte{"backup_label": []byte(label)}}); err != nil {
		return nil, err
	}
	if err := bs.failpoint.At("base: sync"); err != nil {
		return nil, err
	}
	if err := bs.store.arrange(ctx, asowner.Arrangement{Dir: dir, Sync: true}); err != nil {
		return nil, err
	}
	return bs.store.sums(ctx, dir)
}

// check reads all files of a base backup and compares their checksums. The error is of kind errs.Corrupt if a file differs.
func (bs *bases) check(ctx context.Context, b wal.Base) error {
	want, err := os.ReadFile(bs.records.sumsFile(b.ID))
	if err != nil {
		return errs.Wrap(errs.Corrupt, "", err)
	}
	damaged := errs.New(errs.Corrupt, "", "base copy %s is damaged", b.ID).WithHint("use a checkpoint that rests on another base")
	if sum := blake3.Sum256(want); hex.EncodeToString(sum[:]) != b.Sums {
		return damaged
	}
	got, err := bs.store.sums(ctx, bs.store.path("bases", b.ID))
	if err != nil {
		return err
	}
	if name := asowner.FirstDifference(want, got); name != "" {
		damaged.Message += ": " + name
		return damaged
	}
	return nil
}

// nearest returns the base backup from which m is replayed. It returns an error unless all of the log between the two is
// stored.
func (bs *bases) nearest(ctx context.Context, m marker, size wal.Segments) (wal.Base, error) {
	b, _, err := bs.find(ctx, m, size, nil)
	return b, err
}

// find does the work of nearest. If conf is not nil, it also reads the configuration; *conf is the digest of the recorded one.
func (bs *bases) find(ctx context.Context, m marker, size wal.Segments, conf *string) (b wal.Base, found asowner.BaseFound, err error) {
	bases, err := bs.records.bases()
	if err != nil {
		return b, found, err
	}
	found, err = asowner.FindBase.Call(ctx, bs.store.owner, asowner.BaseQuery{Home: bs.store.Home, Bases: bases, TLI: m.TLI, LSN: m.LSN, Size: size, Conf: conf, System: m.system, Apart: bs.store.root != nil})
	if err == nil && len(found.Links) > 0 && bs.store.root != nil {
		err = bs.store.root.Link(bs.store.WAL(), bs.store.Archive(), asowner.Linked, found.Links)
	}
	if err != nil {
		return b, found, err
	}
	i := slices.IndexFunc(bases, func(b wal.Base) bool { return b.ID == found.Base })
	if i < 0 {
		return b, found, errs.New(errs.Internal, "", "no base copy %q is recorded", found.Base)
	}
	return bases[i], found, nil
}
