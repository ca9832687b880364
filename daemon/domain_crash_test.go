//go:build cgo && libvirt_dlopen

package daemon_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/testkit"
)

// testDomainKilled kills a daemon at the steps of its operations on an app with
// a domain, off and running. The next one leaves files, rows and both disks at one
// point, the guest able to write, libvirt's definitions agreeing, and every
// listed checkpoint with the content that it was made of.
func testDomainKilled(t *testing.T) {
	t.Parallel()
	operations := []struct {
		op string
		up bool
	}{
		{"rollback", false}, {"create", true}, {"create", false}, {"rollback", true}, {"delete", false}, {"create-memory", true}, {"prune", false},
	}
	for _, i := range testkit.Sample(t, "operations", len(operations), 1) {
		tt := operations[i]
		t.Run(fmt.Sprintf("%s/up=%t", tt.op, tt.up), func(t *testing.T) {
			k := newKilled(t, tt.up)
			names, killed := k.run(t, tt.op, nil)
			if killed || len(names) < 2 {
				t.Fatalf("steps %q, killed %v", names, killed)
			}
			k.check(t, tt.op, tt.op)
			steps := pickOf(t, names, 1)
			for _, i := range steps {
				where := fmt.Sprintf("%s killed at step %d (%s)", tt.op, i+1, names[i])
				a := aimAt(names, i)
				for !a.hit && !a.over() {
					k.run(t, tt.op, a)
					k.check(t, tt.op, where)
				}
				if !a.hit {
					t.Errorf("never %s", where)
				}
				progress(t, "up=%t: %s", tt.up, where)
			}
			testkit.Tally(t, "kills", len(steps))
		})
	}
}

// killed is an app whose daemons are killed.
type killed struct {
	*vmWorld
	app   ipc.AppID
	guest bool // whether the domain runs
	known map[ipc.CheckpointID]string
	word  string // the present state
	n     int

	target ipc.CheckpointID // of what is done
}

// newKilled gives an app with the checkpoints one and two, in the state three.
func newKilled(t *testing.T, up bool) *killed {
	k := &killed{vmWorld: newVMWorld(t, func(a *ipc.App) { a.Retention = ipc.Retention{KeepLast: 100, KeepSafety: 100, ExpireAfter: "0"} })}
	k.known, k.guest = map[ipc.CheckpointID]string{}, up
	for _, word := range []string{"one", "two"} {
		k.put(t, word)
		cp := k.create(t, ipc.CreateRequest{})
		k.known[cp.ID], k.app = word, cp.AppID
		if k.target == "" {
			k.target = cp.ID
		}
	}
	k.next(t)
	if !up {
		if err := k.domain(t).Destroy(); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// next takes a running guest, files and rows to a state that never was. A guest
// that is off has the word that it had.
func (k *killed) next(t *testing.T) {
	t.Helper()
	k.n++
	k.word = fmt.Sprintf("state%d", k.n)
	k.put(t, k.word)
}

// run lets go of the daemon that lives and has a victim do op, and die where a says unless
// it is nil.
func (k *killed) run(t *testing.T, op string, a *aim) (names []string, died bool) {
	t.Helper()
	k.world.close(t, k.d)
	k.d = nil
	r := round{world: k.world, plan: fate{State: k.state(), Do: op, Target: k.target}}
	if a != nil {
		r.fire(t, a)
		return nil, a.hit
	}
	names, _, died = r.victim(t, 0, 0)
	return names, died
}

// check starts the daemon that comes after.
func (k *killed) check(t *testing.T, op, what string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(what)
		}
	}()
	k.d = k.open(t)
	if s := k.d.Status(root); len(s.Problems) > 0 {
		t.Fatalf("problems: %v", s.Problems)
	}
	k.agree(t)
	if k.up(t) != k.guest {
		t.Fatalf("the guest runs: %t, and should: %t", k.up(t), k.guest)
	}
	allowed := []string{k.word}
	if strings.HasPrefix(op, "rollback") {
		allowed = append(allowed, "one")
	}
	if got := k.present(t); !slices.Contains(allowed, got) {
		t.Fatalf("the app is in state %q, and should be in one of %q", got, allowed)
	}
	k.held(t)
	if op == "delete" { // the next one needs something to delete
		delete(k.known, k.target)
		k.target = k.create(t, ipc.CreateRequest{}).ID
		k.known[k.target] = k.word
	}
	if op == "prune" { // and to prune
		if err := keepLast(t.Context(), k.d, 100); err != nil {
			t.Fatal(err)
		}
		left := listed(t, k.d)
		maps.DeleteFunc(k.known, func(id ipc.CheckpointID, _ string) bool {
			return !slices.ContainsFunc(left, func(cp ipc.Checkpoint) bool { return cp.ID == id })
		})
		for range 2 {
			k.known[k.create(t, ipc.CreateRequest{}).ID] = k.word
		}
	}
	if k.guest {
		k.next(t)
	}
}

// present is the state that everything agrees on now; a guest that runs can write.
func (k *killed) present(t *testing.T) string {
	t.Helper()
	if !k.guest {
		cp := k.create(t, ipc.CreateRequest{Notes: "looked at"}) // no guest can be asked: its disks are read
		defer k.drop(t, cp.ID)
		word := k.world.word(t)
		if got := k.stored(t, k.app, cp); got != word {
			t.Fatalf("files and rows are in state %q, the disks in %q", word, got)
		}
		k.word = word
		return word
	}
	k.WaitReady(t)
	k.Do(t, "sh echo alive >/a/alive && sync")
	return k.all(t)
}

func (k *killed) drop(t *testing.T, id ipc.CheckpointID) {
	t.Helper()
	if err := k.d.Delete(t.Context(), root, "shop", id); err != nil {
		t.Fatal(err)
	}
}

// held checks every checkpoint that is listed: what is stored is whole, and
// what it was. Those that the killed daemon made are looked at once and dropped.
func (k *killed) held(t *testing.T) {
	t.Helper()
	for _, cp := range listed(t, k.d) {
		if res, err := k.d.Verify(t.Context(), root, "shop", cp.ID, snap.Full); err != nil || !res.OK {
			t.Fatalf("%s: %v, %+v", cp.ID, err, res)
		}
		got := k.stored(t, k.app, cp)
		if want, ok := k.known[cp.ID]; ok && got != want {
			t.Fatalf("%s holds %q, and was made of %q", cp.ID, got, want)
		} else if !ok {
			if !strings.HasPrefix(got, "state") && got != "one" {
				t.Fatalf("%s (%s) holds %q", cp.ID, cp.Trigger, got)
			}
			k.drop(t, cp.ID)
		}
	}
}

// agree checks that libvirt's two definitions of the domain name the same images.
func (k *killed) agree(t *testing.T) {
	t.Helper()
	images := func(flags libvirt.DomainXMLFlags) (list []string) {
		text, err := k.domain(t).GetXMLDesc(flags)
		if err != nil {
			t.Fatal(err)
		}
		var dom libvirtxml.Domain
		if err := dom.Unmarshal(text); err != nil {
			t.Fatal(err)
		}
		for _, d := range dom.Devices.Disks {
			list = append(list, d.Source.File.File)
		}
		return list
	}
	if live, kept := images(0), images(libvirt.DOMAIN_XML_INACTIVE); !slices.Equal(live, kept) {
		t.Fatalf("live: %v; persistent: %v", live, kept)
	}
}
