package ipc

import (
	"bufio"
	"bytes"
	"io"
	"math"

	"mulligan/errs"
)

// maxEvent bounds an event's data and each line of a feed, which has no end, in bytes. An answer that comes as an event may be as large as
// one that comes as JSON.
const maxEvent = 4 << 20

// EventReader reads server-sent events (WHATWG HTML, "Server-sent events", §9.2.6). It ignores ids and retry times, because
// this client never reconnects.
type EventReader struct {
	r      *bufio.Reader
	max    int // bound of an event's data and each line, in bytes
	line   []byte
	skipLF bool // the last line ended in CR: an LF now belongs to it
	begun  bool
}

// NewEventReader returns a reader of the events of the feed r.
func NewEventReader(r io.Reader) *EventReader {
	return &EventReader{r: bufio.NewReader(r), max: maxEvent}
}

// answerEvents returns a reader of the events of the answer r.
func answerEvents(r io.Reader) *EventReader {
	return &EventReader{r: bufio.NewReader(r), max: math.MaxInt}
}

// Next returns the next event. At the end of the stream it returns io.EOF; an incomplete event at the end is dropped.
func (e *EventReader) Next() (Event, error) {
	var ev Event
	hasData := false
	for {
		line, err := e.readLine()
		if err != nil {
			return Event{}, err
		}
		if len(line) == 0 {
			if hasData {
				return ev, nil
			}
			ev = Event{} // an event without data is ignored
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			ev.Name = string(value)
		case "data":
			if hasData {
				ev.Data = append(ev.Data, '\n')
			}
			hasData = true
			ev.Data = append(ev.Data, value...)
			if len(ev.Data) > e.max {
				return Event{}, errs.New(errs.Invalid, "read events", "an event is larger than %d bytes", e.max)
			}
		}
	}
}

// readLine returns a line without its end, which may be LF, CR or CRLF. The line is valid until the next call.
func (e *EventReader) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		b, err := e.r.ReadByte()
		if err != nil {
			return nil, err
		}
		lf := b == '\n'
		if lf && e.skipLF {
			e.skipLF = false
			continue
		}
		e.skipLF = b == '\r'
		if lf || e.skipLF {
			break
		}
		if len(e.line) == e.max {
			return nil, errs.New(errs.Invalid, "read events", "a line is longer than %d bytes", e.max)
		}
		e.line = append(e.line, b)
	}
	if !e.begun {
		e.begun = true
		return bytes.TrimPrefix(e.line, []byte("\xef\xbb\xbf")), nil
	}
	return e.line, nil
}
