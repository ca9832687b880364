package rollback

import (
	"testing"

	"mulligan/daemon/layer"
	"mulligan/snap"
)

// Names of layers that were given as paths lead to the layers.
func TestLayerMeant(t *testing.T) {
	one := []layer.Layer{{Name: snap.Files}, {Name: snap.DB("main"), Kind: layer.Database}}
	two := append([]layer.Layer{{Name: snap.Disk}, {Name: snap.DB("cache"), Kind: layer.Database}}, one...)
	for name, want := range map[string][2]string{
		"db": {"layer:db:main", "layer:db, all of layer:db:cache, layer:db:main"}, "databases": {"layer:db:main", "layer:db, all of layer:db:cache, layer:db:main"},
		"main": {"layer:db:main", "layer:db:main"}, "db:main": {"layer:db:main", "layer:db:main"}, "files": {"layer:files", "layer:files"},
		"vm": {"", "layer:disk"}, "db:other": {"layer:db:main", "layer:db:cache or layer:db:main"}, "src": {}, "": {},
	} {
		if got := layerMeant(name, one); got != want[0] {
			t.Errorf("%q is %q, and should be %q", name, got, want[0])
		}
		if got := layerMeant(name, two); got != want[1] {
			t.Errorf("%q of two databases is %q, and should be %q", name, got, want[1])
		}
	}
}
