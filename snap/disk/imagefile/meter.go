package imagefile

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"

	"mulligan/snap"
)

// meterStep is the number of bytes between two progress reports.
const meterStep = 64 << 20

type meterKey struct{}

// meter reports the progress of reading files.
type meter struct {
	read, all, told int64
	tell            func(words string)
}

// Metered returns a context in which HashFile reports its progress with files of size bytes in total. The first report is made
// at once, unless size is 0.
func Metered(ctx context.Context, size int64) context.Context {
	if size == 0 {
		return ctx
	}
	m := &meter{all: size, tell: snap.Progress(ctx)}
	m.say()
	return context.WithValue(ctx, meterKey{}, m)
}

func (m *meter) say() {
	m.told = m.read
	m.tell(fmt.Sprintf("disks read for the first time: %s of %s", humanize.IBytes(uint64(m.read)), humanize.IBytes(uint64(m.all))))
}

// measure records that n bytes were read, if the context has a meter.
func measure(ctx context.Context, n int) {
	m, ok := ctx.Value(meterKey{}).(*meter)
	if !ok {
		return
	}
	m.read += int64(n)
	if m.read-m.told >= meterStep || m.read == m.all && n > 0 {
		m.say()
	}
}
