package layer

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// TestStateRemovedWhileItGrows: the folder of a purged app is removed although files are made in it meanwhile.
func TestStateRemovedWhileItGrows(t *testing.T) {
	top := t.TempDir()
	for i := range 5 {
		dir := filepath.Join(top, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		begun, stop, grown := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(grown)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if os.WriteFile(filepath.Join(dir, strconv.Itoa(n)), nil, 0o600) != nil {
					return // the folder is gone
				}
				if n == 100 {
					close(begun)
				}
			}
		}()
		<-begun
		if err := RemoveState(dir); err != nil {
			t.Errorf("round %d: %v", i, err)
		}
		close(stop)
		<-grown
	}
}
