package physical

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/wal"
)

// takeBase copies the data folder of the running server ("Making a Base Backup
// Using the Low Level API" in the server's manual).
func (d *Driver) takeBase(ctx context.Context) error {
	d.base.Lock()
	defer d.base.Unlock()
	return d.takeBaseLocked(ctx)
}

// takeBaseLocked is takeBase for a caller that holds d.base.
func (d *Driver) takeBaseLocked(ctx context.Context) (err error) {
	c, err := d.server.connect(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	f, err := d.server.inspect(ctx, c)
	if err == nil {
		err = d.server.refuse(ctx, f)
	}
	if err == nil {
		err = d.store.room(ctx, d.cfg.DataDir)
	}
	if err != nil {
		return err
	}
	began := time.Now()
	b := wal.Base{ID: randomHex(8), Created: began.UTC()}
	dir := d.store.path("bases", b.ID)
	defer func() {
		if err != nil { // and if this fails too, the next Sweep does it
			err = errs.Also(err, d.store.remove(ctx, dir))
		}
	}()
	defer d.copying.Store(nil)
	list, err := d.copyBase(ctx, c, &b, dir)
	if err != nil {
		return err
	}
	sum := blake3.Sum256(list)
	b.Sums = hex.EncodeToString(sum[:])
	if err := d.cfg.Failpoint.At("base: record"); err != nil {
		return err
	}
	if err := durable.WriteFile(d.records.sumsFile(b.ID), list, 0o600); err != nil {
		return err
	}
	d.cfg.Log.Debug("base taken", "cluster", d.cfg.Name, "base", b.ID, "timeline", b.TLI, "lsn", b.Stop.String(), "took", age(began))
	return d.records.put("bases", b.ID, b)
}

// copyBase makes the copy, durably, and gives the sums of its files.
func (d *Driver) copyBase(ctx context.Context, c conn, b *wal.Base, dir string) (list []byte, err error) {
	if err := d.cfg.Failpoint.At("base: begin"); err != nil {
		return nil, err
	}
	if err := c.row(ctx, fmt.Sprintf("SELECT pg_backup_start('mulligan %s', true)::text", b.ID), &b.Start); err != nil {
		return nil, err
	}
	if b.TLI, err = c.timeline(ctx); err != nil {
		return nil, err
	}
	d.copying.Store(&place{TLI: b.TLI, Start: b.Start})
	if err := d.cfg.Failpoint.At("base: copy"); err != nil {
		return nil, err
	}
	if _, err := asowner.Copy.Call(ctx, d.owner, asowner.ClusterCopy{From: d.cfg.DataDir, To: dir, Live: true}); err != nil {
		return nil, err
	}
	var label, spaces string
	if err := c.row(ctx, "SELECT lsn::text, labelfile, spcmapfile FROM pg_backup_stop(false)", &b.Stop, &label, &spaces); err != nil {
		return nil, err
	}
	if strings.TrimSpace(spaces) != "" {
		return nil, errs.New(errs.Unsupported, "", "the cluster has tablespaces outside its data folder").WithHint("use mode = logical")
	}
	if err := b.ReadLabel(label); err != nil {
		return nil, err
	}
	if _, err := d.server.ReadControl(ctx, dir); err != nil { // it was read while the server may have been writing it
		return nil, err
	}
	if err := d.store.arrange(ctx, asowner.Arrangement{Dir: dir, Files: map[string][]byte{"backup_label": []byte(label)}}); err != nil {
		return nil, err
	}
	if err := d.cfg.Failpoint.At("base: sync"); err != nil {
		return nil, err
	}
	if err := d.store.arrange(ctx, asowner.Arrangement{Dir: dir, Sync: true}); err != nil {
		return nil, err
	}
	return d.store.sums(ctx, dir)
}

// checkBase reads all files of a base and compares them with their sums.
func (d *Driver) checkBase(ctx context.Context, b wal.Base) error {
	want, err := os.ReadFile(d.records.sumsFile(b.ID))
	if err != nil {
		return errs.Wrap(errs.Corrupt, "", err)
	}
	damaged := errs.New(errs.Corrupt, "", "base copy %s is damaged", b.ID).WithHint("use a checkpoint that rests on another base")
	if sum := blake3.Sum256(want); hex.EncodeToString(sum[:]) != b.Sums {
		return damaged
	}
	got, err := d.store.sums(ctx, d.store.path("bases", b.ID))
	if err != nil {
		return err
	}
	if name := asowner.FirstDifference(want, got); name != "" {
		damaged.Message += ": " + name
		return damaged
	}
	return nil
}
