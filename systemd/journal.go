package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// Journal returns a handler that writes to the journal, with each attribute as a field (systemd.journal-fields(7)), so that
// `journalctl APP=shop` works. It returns false if standard error is not connected to the journal; the caller then logs text.
func Journal(level slog.Leveler) (slog.Handler, bool) {
	if ok, err := journal.StderrIsJournalStream(); err != nil || !ok || !journal.Enabled() {
		return nil, false
	}
	return &journalHandler{level: level, send: journal.Send}, true
}

type journalHandler struct {
	level  slog.Leveler
	send   func(message string, p journal.Priority, fields map[string]string) error
	attrs  []slog.Attr // with their groups in their keys
	prefix string      // of the open groups
}

func (h *journalHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

func (h *journalHandler) WithGroup(name string) slog.Handler {
	next := *h
	next.prefix += name + "_"
	return &next
}

func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.attrs = append(next.attrs[:len(next.attrs):len(next.attrs)], prefixed(h.prefix, attrs)...)
	return &next
}

func prefixed(prefix string, attrs []slog.Attr) (list []slog.Attr) {
	for _, a := range attrs {
		a.Value = a.Value.Resolve()
		if a.Value.Kind() == slog.KindGroup {
			list = append(list, prefixed(prefix+a.Key+"_", a.Value.Group())...)
			continue
		}
		a.Key = prefix + a.Key
		list = append(list, a)
	}
	return list
}

// Handle sends a record. The message contains the attributes too, because most tools show only the message.
func (h *journalHandler) Handle(_ context.Context, r slog.Record) error {
	attrs := h.attrs[:len(h.attrs):len(h.attrs)]
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, prefixed(h.prefix, []slog.Attr{a})...)
		return true
	})
	text := r.Message
	fields := map[string]string{}
	for _, a := range attrs {
		v := a.Value.String()
		fields[fieldName(a.Key)] = v
		text += fmt.Sprintf(" %s=%s", a.Key, quoted(v))
	}
	return h.send(text, priority(r.Level), fields)
}

func quoted(v string) string {
	if strings.ContainsAny(v, " \"\n\t") {
		return fmt.Sprintf("%q", v)
	}
	return v
}

// fieldName returns a valid name of a journal field: upper-case letters, digits and _. It avoids the names that the journal
// sets itself and those with another meaning (MESSAGE, PRIORITY).
func fieldName(key string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '_'
	}, key)
	if name = strings.TrimLeft(name, "_0123456789"); name == "" || name == "MESSAGE" || name == "PRIORITY" {
		return "MULLIGAN_" + name
	}
	return name
}

func priority(l slog.Level) journal.Priority {
	switch {
	case l >= slog.LevelError:
		return journal.PriErr
	case l >= slog.LevelWarn:
		return journal.PriWarning
	case l >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}
