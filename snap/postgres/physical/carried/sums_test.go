package carried

import (
	"testing"

	"mulligan/errs"
)

// TestDamagedList reads lists of a base copy's files of which one line cannot be true.
func TestDamagedList(t *testing.T) {
	const good = "aa 3 \"base/1/f\"\n"
	if files, err := Listed([]byte(good), "/base"); err != nil || len(files) != 1 || files[0].At != "/base/base/1/f" || files[0].Size != 3 {
		t.Fatalf("%+v, %v", files, err)
	}
	for _, bad := range []string{"aa -1 \"f\"\n", "aa 3 \"../f\"\n", "aa 3 \"/f\"\n", "aa 3 f\n", "aa\n", "\n"} {
		if files, err := Listed([]byte(good+bad), "/base"); errs.KindOf(err) != errs.Corrupt {
			t.Errorf("%q: %+v, %v, want %q", bad, files, err, errs.Corrupt)
		}
	}
}
