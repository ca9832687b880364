package packaging

import (
	"os"
	"os/exec"
	"testing"

	"mulligan/testkit"
)

// emulated are the packages whose tests run under the emulation of one program. Its system calls lack openat2, with which every path of a
// workspace is opened: what works on workspaces cannot be tried this way.
var emulated = []string{
	"appfile", "cmd/mulligan/detect", "cmd/mulligan/guide", "cmd/mulligan/output", "cmd/mulligan/values",
	"daemon/app", "daemon/checkpoint", "daemon/config", "daemon/fork/bisect", "daemon/fork/collide", "daemon/layer", "daemon/retention", "daemon/rollback", "daemon/store",
	"durable", "errs", "naming", "nearest", "packaging/sbom", "snap/cas/delta", "snap/cas/encoding", "snap/extsort",
}

// unemulated are the tests in these packages that need what the emulation does not do: the first one watches the system calls of a process, the second
// one opens a path beneath its root.
const unemulated = "^Test(CopyIsSynced|FolderOfOlderRecord)$"

// TestLongARM runs the tests of packages that were built for ARM.
func TestLongARM(t *testing.T) {
	testkit.NeedLong(t)
	testkit.Need(t, "arm64")
	args := []string{"test", "-tags", "libvirt_dlopen", "-vet=off", "-count=1", "-skip", unemulated, "-exec", "qemu-aarch64-static -L /usr/aarch64-linux-gnu"}
	for _, p := range emulated {
		args = append(args, "mulligan/"+p)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=1", "CC=aarch64-linux-gnu-gcc", "MULLIGAN_TEST_LONG=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
