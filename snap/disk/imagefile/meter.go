package imagefile

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"

	"mulligan/snap"
)

// meterStep is how many bytes are read between two words about it.
const meterStep = 64 << 20

type meterKey struct{}

// meter tells how much of what must be read has been.
type meter struct {
	read, all, told int64
	tell            func(words string)
}

// metered returns a context under which hashFile tells how far it is with files of size bytes in
// all, and says so at once where there is anything to read.
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

// measure notes that n bytes were read, where somebody counts.
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
