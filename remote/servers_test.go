package remote

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"mulligan/remote/s3test"
	"mulligan/snap/disk/cephtest"
	"mulligan/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := cephtest.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "close Ceph:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// servers start S3 servers of one kind.
type servers struct {
	start, locked func(testing.TB) *s3test.Server
}

// onServers are the tests that a server is to pass on which remotes are.
var onServers = []func(*testing.T, servers){
	testPushAndFetch,
	testDamagedBucket,
	testTwoHosts,
	testLedgerNotBelieved,
	testPushCutShort,
	testForgedEntry,
	testFaultsOfTheNetwork,
	testServerAway,
	testCheckAndMend,
	testRefusals,
	testAppendOnly,
	testServerSaysNo,
	testPrune,
	testPrunedComesBack,
	testPruneCutShort,
	testPruneOfTwoHosts,
	testPruneAppendOnly,
	testPruneOlderLedger,
	testPushAfterPruneOfOlderLedger,
	testPutBack,
	testPruneModel,
	testAnotherHost,
}

// TestServers runs them on versitygw, or, every fourth time, some of them on Ceph's gateway: a Ceph takes half a minute of a processor.
func TestServers(t *testing.T) {
	part, parts := testkit.Part(t, 4)
	if parts == 1 || part < 3 {
		t.Run("versitygw", func(t *testing.T) {
			t.Parallel()
			for _, test := range onServers {
				t.Run(name(test), func(t *testing.T) {
					t.Parallel()
					test(t, servers{func(t testing.TB) *s3test.Server { return s3test.Start(t) }, func(t testing.TB) *s3test.Server { return s3test.StartLocked(t) }})
				})
			}
		})
	}
	if parts == 1 || part == 3 {
		t.Run("ceph", func(t *testing.T) {
			for _, i := range testkit.Sample(t, "tests", len(onServers), 8) {
				t.Run(name(onServers[i]), func(t *testing.T) { onServers[i](t, servers{s3test.OnCeph, s3test.LockedOnCeph}) })
			}
		})
	}
}

// name returns the name of a test's function, without "test".
func name(test func(*testing.T, servers)) string {
	full := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
	return strings.TrimPrefix(full[strings.LastIndexByte(full, '.')+1:], "test")
}
