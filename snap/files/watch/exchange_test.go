package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"mulligan/testkit"

	"golang.org/x/sys/unix"
)

// exchange swaps folders by one call and writes into them.
func exchange(t testing.TB, n int) func(dir string) {
	r := testkit.Rand(t)
	return func(dir string) {
		path := func() string {
			p := filepath.Join(dir, string(rune('p'+r.IntN(3))))
			if r.IntN(2) == 0 {
				p = filepath.Join(p, "k")
			}
			return p
		}
		for i := range n {
			a, b := path(), path()
			_ = os.MkdirAll(a, 0o755)
			_ = os.MkdirAll(b, 0o755)
			_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			_ = os.WriteFile(filepath.Join(path(), "f"), []byte(fmt.Sprint(i)), 0o644)
		}
	}
}
