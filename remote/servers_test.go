package remote

import (
	"fmt"
	"net/http"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/remote/s3store"
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
	// full starts one that has room for a MiB, and more if the function that it returns is called.
	full func(*testing.T) (s *s3test.Server, more func())
	// appends opens a bucket for a key that cannot delete.
	appends func(*testing.T) *s3store.Store
	// overwrites says that the server ignores conditions of writes in buckets with versions, as Ceph 16 does: a remote cannot be there.
	overwrites bool
}

var (
	onVersitygw = servers{
		start:  func(t testing.TB) *s3test.Server { return s3test.Start(t) },
		locked: func(t testing.TB) *s3test.Server { return s3test.StartLocked(t) },
		full: func(t *testing.T) (*s3test.Server, func()) {
			testkit.Need(t, "root")
			dir := t.TempDir()
			must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
			t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
			return s3test.StartIn(t, dir), func() { must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=16m")) }
		},
		appends: func(t *testing.T) *s3store.Store { // its only account may do everything
			p := newProxy(t, s3test.Start(t).Endpoint)
			p.fault = func(r *http.Request) fault {
				if r.Method == http.MethodDelete || r.Method == http.MethodPut && r.Header.Get("If-None-Match") == "" || r.URL.Query().Has("object-lock") {
					return refused
				}
				return none
			}
			return connect(t, p.URL)
		},
	}
	onCeph = servers{
		start:  s3test.OnCeph,
		locked: s3test.LockedOnCeph,
		full: func(t *testing.T) (*s3test.Server, func()) {
			s := s3test.OnCeph(t)
			s.Quota(t, 1<<20)
			return s, func() { s.Quota(t, 16<<20) }
		},
		appends: func(t *testing.T) *s3store.Store {
			s := s3test.OnCeph(t)
			return connectAs(t, s.Endpoint, keys(s.Appender(t)))
		},
		overwrites: true,
	}
)

// onServers are the tests that a server is to pass on which remotes are.
var onServers = []func(*testing.T, servers){
	testPushAndFetch,
	testDamagedBucket,
	testTwoHosts,
	testLedgerNotBelieved,
	testPushCutShort,
	testNewRecipient,
	testPruneNewRecipient,
	testForgedEntry,
	testFaultsOfTheNetwork,
	testServerAway,
	testCheckAndMend,
	testDoubt,
	testDoubtWhileSent,
	testRefusals,
	testAppendOnly,
	testServerFull,
	testSlowServer,
	testServerSaysNo,
	testPrune,
	testPrunedComesBack,
	testPruneCutShort,
	testPruneOfTwoHosts,
	testPruneOfSentByTwo,
	testPruneAppendOnly,
	testPruneOlderLedger,
	testPushAfterPruneOfOlderLedger,
	testTakeOverAfterPrune,
	testTakeOverOfOlderBucket,
	testPutBack,
	testPruneOfOlderBucket,
	testPruneOfChangedLog,
	testPruneDamagedEntry,
	testPruneLandsLate,
	testCheckAfterPruneCutShort,
	testPruneModel,
	testAnotherHost,
}

// TestServers runs them on versitygw, and every fourth time some of them on Ceph's gateway as well: a Ceph takes half a minute of a processor.
func TestServers(t *testing.T) {
	t.Run("versitygw", func(t *testing.T) {
		t.Parallel()
		for _, test := range onServers {
			t.Run(name(test), func(t *testing.T) {
				t.Parallel()
				test(t, onVersitygw)
			})
		}
	})
	part, parts := testkit.Part(t, 4)
	if parts == 1 || part == 3 {
		t.Run("ceph", func(t *testing.T) {
			for _, i := range testkit.Sample(t, "tests", len(onServers), 4) {
				t.Run(name(onServers[i]), func(t *testing.T) { onServers[i](t, onCeph) })
			}
		})
	}
}

// name returns the name of a test's function, without "test".
func name(test func(*testing.T, servers)) string {
	full := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
	return strings.TrimPrefix(full[strings.LastIndexByte(full, '.')+1:], "test")
}
