package watch

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// exchange swaps folders by one call and writes into them.
func exchange(seed int64, n int) func(dir string) {
	return func(dir string) {
		r := rand.New(rand.NewSource(seed))
		path := func() string {
			p := filepath.Join(dir, string(rune('p'+r.Intn(3))))
			if r.Intn(2) == 0 {
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
