package files

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"mulligan/snap"
)

const benchFiles = 20_000

// plant makes a tree of the benches' size, 10 files to a folder, 4 KiB each on average.
func plant(b testing.TB, dir string) {
	r := rand.New(rand.NewPCG(3, 3))
	for i := range benchFiles {
		p := benchFile(dir, i)
		if i%10 == 0 {
			must(b, os.MkdirAll(filepath.Dir(p), 0o755))
		}
		must(b, os.WriteFile(p, fmt.Appendf(nil, "%x", random(r, r.IntN(4096))), 0o644))
	}
}

func benchFile(dir string, i int) string {
	return fmt.Sprintf("%s/%d/%d/f%d", dir, i/500, i/10, i)
}

func edit(b *testing.B, dir string, round int) {
	for i := range 10 {
		must(b, os.WriteFile(benchFile(dir, i*1987), fmt.Append(nil, "edit ", round, i), 0o644))
	}
}

func BenchmarkFirstCapture(b *testing.B) {
	s := newSite(b)
	plant(b, s.dir)
	for b.Loop() {
		b.StopTimer()
		must(b, os.RemoveAll(s.store))
		must(b, os.RemoveAll(s.state))
		s.open(b)
		b.StartTimer()
		s.capture(b)
	}
}

func BenchmarkNothingChanged(b *testing.B) {
	s := newSite(b)
	plant(b, s.dir)
	s.capture(b)
	for b.Loop() {
		s.capture(b)
	}
}

func BenchmarkTenChanged(b *testing.B) {
	s := newSite(b)
	plant(b, s.dir)
	s.capture(b)
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		edit(b, s.dir, n)
		b.StartTimer()
		s.capture(b)
	}
}

// BenchmarkRestoreTen is Prepare, Stale, Commit and Check; BenchmarkCommitTen
// is Commit alone, the time that an app stands still for its files.
func BenchmarkRestoreTen(b *testing.B) { restoreTen(b, true) }
func BenchmarkCommitTen(b *testing.B)  { restoreTen(b, false) }

func restoreTen(b *testing.B, whole bool) {
	s := newSite(b)
	plant(b, s.dir)
	target := s.capture(b)
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		edit(b, s.dir, n)
		base := s.capture(b)
		if whole {
			b.StartTimer()
		}
		sw, err := s.Prepare(b.Context(), snap.RestoreRequest{ID: "op", Target: target.ID, Base: base.ID})
		must(b, err)
		stale, err := sw.Stale(b.Context())
		if stale || err != nil {
			b.Fatal("stale", err)
		}
		if !whole {
			b.StartTimer()
		}
		must(b, sw.Commit(b.Context()))
		if !whole {
			b.StopTimer()
		}
		p, err := sw.Check(b.Context())
		if !p.Match || err != nil {
			b.Fatal(p, err)
		}
		b.StopTimer()
		must(b, sw.Finish(b.Context()))
		b.StartTimer()
	}
}

// The same with git, as the measure: add -A and commit; reset --hard and clean.
func BenchmarkGitFirst(b *testing.B) {
	s := newSite(b)
	plant(b, s.dir)
	for b.Loop() {
		run(b, s.dir, `rm -rf .git; git init -q .; git add -A; git commit -qm x`)
	}
}

func BenchmarkGitNothing(b *testing.B) {
	s := newSite(b)
	plant(b, s.dir)
	run(b, s.dir, `git init -q .; git add -A; git commit -qm x`)
	for b.Loop() {
		run(b, s.dir, `git add -A; git commit -q --allow-empty -m x`)
	}
}

func BenchmarkGitTen(b *testing.B) {
	s := newSite(b)
	plant(b, s.dir)
	run(b, s.dir, `git init -q .; git add -A; git commit -qm x`)
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		edit(b, s.dir, n)
		b.StartTimer()
		run(b, s.dir, `git add -A; git commit -qm x`)
	}
}

func BenchmarkGitRestoreTen(b *testing.B) {
	s := newSite(b)
	plant(b, s.dir)
	run(b, s.dir, `git init -q .; git add -A; git commit -qm x; git tag good`)
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		edit(b, s.dir, n)
		run(b, s.dir, `git add -A; git commit -qm x`)
		b.StartTimer()
		run(b, s.dir, `git reset -q --hard good; git clean -qfd`)
	}
}
