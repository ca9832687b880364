package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// TestSoak has agents and people work on an app of files, a SQLite file and a Redis server for as long as
// MULLIGAN_TEST_SOAK says (make soak), while the daemon and the app's program are killed now and then, and the
// disk fills up. After each thing that is done the app runs, whole, in the state that it should be in.
func TestSoak(t *testing.T) {
	length := testkit.NeedSoak(t)
	d := newDaemon(t)
	d.smallDisk(512)
	d.start()
	a, h := newHookedAt(t, d, "claude-code")
	s := &soak{t: t, a: a, h: h, r: testkit.Rand(t), words: map[ipc.CheckpointID]string{}, tally: map[string]int{}}
	s.startRedis()
	for _, word := range []string{"first", "second"} {
		s.write(word)
		s.words[a.create().ID] = word
	}
	things := []struct {
		name string
		do   func()
	}{
		{"turn", s.turn}, {"turn", s.turn}, {"turn", s.turn}, {"create", s.create}, {"rollback", s.rollback}, {"rollback", s.rollback},
		{"there and back", s.thereAndBack}, {"kill in create", s.killInCreate}, {"kill in rollback", s.killInRollback}, {"kill app", s.killApp}, {"prune", s.prune},
		{"full disk", s.fullDisk},
	}
	for end := time.Now().Add(length); time.Now().Before(end); s.n++ {
		thing := things[s.r.IntN(len(things))]
		s.tally[thing.name]++
		thing.do()
		if got := s.sound(); got != s.word {
			t.Fatalf("%d: after %s the app is in state %q, want %q", s.n, thing.name, got, s.word)
		}
		if s.n%100 == 99 {
			t.Logf("%d things: %v", s.n+1, s.tally)
		}
	}
	testkit.Tally(t, "kills", s.tally["kills"])
	t.Logf("%d things in %v: %v", s.n, length, s.tally)
}

// sound checks that the app runs, in one state, and that all that is listed is whole.
// Checkpoints of turns may go at any time.
func (s *soak) sound() (word string) {
	s.a.up(s.t)
	word = s.a.word(s.t)
	if got := s.redis("GET", "word"); got != word {
		s.t.Fatalf("%d: the files say %q, Redis says %q", s.n, word, got)
	}
	for _, cp := range s.a.checkpoints() {
		res, err := s.a.d.client.Verify(s.t.Context(), "shop", cp.ID)
		if err != nil && (cp.Trigger != ipc.TriggerAgent || errs.KindOf(err) != errs.NotFound) || err == nil && !res.OK {
			s.t.Fatalf("%d: %s is listed and damaged: %v, %v", s.n, cp.ID, res.Problems, err)
		}
	}
	if s.n == s.filled { // it looks again now and then
		eventually(s.t, "the daemon has no problems with room on the disk", func() bool { return len(ask[ipc.Status](s.a.d, "status").Problems) == 0 })
	} else if st := ask[ipc.Status](s.a.d, "status"); len(st.Problems) > 0 {
		s.t.Fatalf("%d: the daemon has problems: %v", s.n, st.Problems)
	}
	return word
}

// soak is an app at work, and what it should be.
type soak struct {
	t     *testing.T
	a     *testApp
	h     hooks
	r     *rand.Rand
	n     int
	port  string                      // of the Redis server
	word  string                      // the present state
	words map[ipc.CheckpointID]string // of those checkpoints that were asked for
	tally map[string]int

	filled int // the thing that filled the disk last
}

// startRedis starts a server that has the app's word as well, and adds it to the app.
func (s *soak) startRedis() {
	testkit.Need(s.t, "redis")
	_, port, err := net.SplitHostPort(freeAddr(s.t))
	if err != nil {
		s.t.Fatal(err)
	}
	s.port, s.filled = port, -1
	server := &server{t: s.t, command: []string{"redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", s.t.TempDir(), "--appendonly", "no", "--save", ""},
		ready: func() bool { return exec.Command("redis-cli", "-p", port, "PING").Run() == nil }}
	s.t.Cleanup(server.stop)
	server.start()
	s.a.d.must("app", "set", "database=cache=redis://127.0.0.1:"+port, "--app", "shop")
}

func (s *soak) redis(args ...string) string {
	s.t.Helper()
	return strings.TrimSpace(output(s.t, "", "redis-cli", append([]string{"-p", s.port}, args...)...))
}

func (s *soak) write(word string) {
	s.a.set(s.t, word)
	s.redis("SET", "word", word)
	s.word = word
}

func (s *soak) next() string { return fmt.Sprint("w", s.n) }

// turn is an agent's, of which everything but some reads is told by its hooks.
func (s *soak) turn() {
	call := fmt.Sprintf(`,"tool_name":"Bash","tool_use_id":"toolu_%d","tool_input":{}`, s.n)
	s.h.run(s.h.claude("UserPromptSubmit", `,"prompt":"go"`))
	s.h.run(s.h.claude("PreToolUse", call))
	s.write(s.next())
	s.h.run(s.h.claude("PostToolUse", call+`,"tool_response":{}`))
	s.h.run(s.h.claude("Stop", ""))
}

func (s *soak) create() { s.words[s.a.create().ID] = s.word }

// target draws one of the checkpoints that are left of those asked for.
func (s *soak) target() ipc.CheckpointID {
	var ids []ipc.CheckpointID
	for _, cp := range s.a.checkpoints() {
		if s.words[cp.ID] != "" {
			ids = append(ids, cp.ID)
		}
	}
	if len(ids) == 0 {
		s.t.Fatal("no checkpoint is left that somebody asked for")
	}
	slices.Sort(ids)
	return ids[s.r.IntN(len(ids))]
}

func (s *soak) rollback() {
	to := s.target()
	res := ask[ipc.RollbackResult](s.a.d, "rollback", string(to), "--app", "shop")
	if !res.RolledBack || res.Verification == nil || !res.Verification.Match {
		s.t.Fatalf("%+v", res)
	}
	s.word = s.words[to]
}

// thereAndBack goes to a checkpoint, and to the safety checkpoint of that.
func (s *soak) thereAndBack() {
	s.write(s.next())
	was := s.word
	res := ask[ipc.RollbackResult](s.a.d, "rollback", string(s.target()), "--app", "shop")
	if res.SafetyCheckpoint == nil {
		s.t.Fatalf("%+v", res)
	}
	ask[ipc.RollbackResult](s.a.d, "rollback", string(res.SafetyCheckpoint.ID), "--app", "shop")
	s.word = was
}

func (s *soak) killed(f func() error) (cut bool) {
	cut = killDuring(s.a.d, time.Duration(s.r.Int64N(int64(2*time.Second))), f)
	if cut {
		s.tally["kills"]++
	}
	return cut
}

func (s *soak) killInCreate() {
	s.write(s.next())
	s.killed(func() error {
		_, err := s.a.d.client.CreateCheckpoint(s.t.Context(), "shop", ipc.CreateRequest{})
		return err
	})
}

// killInRollback leaves the app as it was, or as was asked for.
func (s *soak) killInRollback() {
	to := s.target()
	s.killed(func() error {
		_, err := s.a.d.client.Rollback(s.t.Context(), "shop", to, ipc.RollbackRequest{}, nil)
		return err
	})
	if s.a.word(s.t) == s.words[to] {
		s.word = s.words[to]
	}
}

// fullDisk has a checkpoint and a rollback asked for while the disk is full: each is done, or says why not and
// leaves the app as it was.
func (s *soak) fullDisk() {
	s.write(s.next())
	to := s.target()
	ballast := filepath.Join(s.a.d.dir, "ballast")
	shell(s.t, s.a.d.dir, `dd if=/dev/zero of="$1" bs=64k 2>/dev/null || :`, ballast)
	cp, createErr := s.a.d.client.CreateCheckpoint(s.t.Context(), "shop", ipc.CreateRequest{})
	_, backErr := s.a.d.client.Rollback(s.t.Context(), "shop", to, ipc.RollbackRequest{}, nil)
	if err := os.Remove(ballast); err != nil {
		s.t.Fatal(err)
	}
	s.filled = s.n
	if createErr == nil {
		s.words[cp.ID] = s.word
	}
	for _, err := range []error{createErr, backErr} {
		if err != nil {
			s.tally["refused on a full disk"]++
		}
		if kind := errs.KindOf(err); kind == errs.Internal || kind == errs.Corrupt {
			s.t.Fatalf("%d: on a full disk: %v", s.n, err)
		}
	}
	if s.a.word(s.t) == s.words[to] {
		s.word = s.words[to]
	}
}

// killApp kills the app's program, which is started again.
func (s *soak) killApp() {
	shell(s.t, s.a.ws, `pid=$(pgrep -f "serve-app $1 ") && kill -9 $pid`, s.a.addr)
	eventually(s.t, "the app is up again", func() bool { return visit(s.t.Context(), s.a.addr) == s.word+"\n" })
	s.tally["kills"]++
}

func (s *soak) prune() { s.a.d.must("prune", "--app", "shop") }
