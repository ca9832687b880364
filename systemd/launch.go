package systemd

import (
	"context"
	"strings"
)

// Launches reports whether the unit is a oneshot service, such as one that runs `virsh start`, whose effect outlives it, and
// whether one of its commands contains all of these words.
func (s *Service) Launches(ctx context.Context, words ...string) (oneshot, found bool, err error) {
	if !strings.HasSuffix(s.name, ".service") {
		return false, false, nil
	}
	type execution struct { // see org.freedesktop.systemd1(5), ExecStart
		Path             string
		Args             []string
		IgnoreFailure    bool
		Begun, BegunMono uint64
		Ended, EndedMono uint64
		PID              uint32
		Code, Status     int32
	}
	var typ string
	var commands []execution
	err = s.m.do(ctx, func(b *bus) error {
		path, err := b.load(ctx, s.name)
		if err != nil {
			return err
		}
		if err := b.get(ctx, path, serviceIf, "Type", &typ); err != nil {
			return err
		}
		return b.get(ctx, path, serviceIf, "ExecStart", &commands)
	})
	if err != nil {
		return false, false, s.m.failure("look at", s.name, err)
	}
	for _, c := range commands {
		found = found || hasWords(strings.Join(append([]string{c.Path}, c.Args...), " "), words)
	}
	return typ == "oneshot", found, nil
}

// hasWords reports whether a command line contains all of the words, each as an argument or as the last element of a path.
func hasWords(line string, words []string) bool {
	have := map[string]bool{}
	for _, w := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n'\";&|()", r) }) {
		have[w[strings.LastIndexByte(w, '/')+1:]] = true
	}
	for _, w := range words {
		if !have[w] {
			return false
		}
	}
	return len(words) > 0
}
