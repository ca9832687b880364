package imagefile

import (
	"context"

	"mulligan/snap"
)

type meterKey struct{}

// Metered returns a context in which HashFile reports its progress with files of size bytes in total. The first report is made
// at once, unless size is 0.
func Metered(ctx context.Context, size int64) context.Context {
	if size == 0 {
		return ctx
	}
	return context.WithValue(ctx, meterKey{}, snap.NewMeter(ctx, "disks read for the first time", snap.UnitBytes, size))
}

// measure records that n bytes were read, if the context has a meter.
func measure(ctx context.Context, n int) {
	if m, ok := ctx.Value(meterKey{}).(*snap.Meter); ok && n > 0 {
		m.Add(int64(n))
	}
}
