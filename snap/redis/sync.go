package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"mulligan/errs"
)

// summary is the result of reading a snapshot.
type summary struct {
	at      position
	size    int64
	read    time.Time // time of the server's clock, at or after the snapshot
	scanned *scanned
}

// errOlder means that the server sends a snapshot that it began before it was asked.
var errOlder = errs.New(errs.Busy, "", "the server sends older snapshots to other replicas all the time").WithHint("try again later")

// read requests a snapshot from the server as a replica does, copies it to w, and calls each for its keys. The snapshot is of a
// moment during the call; at is the position of that moment. The caller must close the result's scanned.
func (d *Driver) read(ctx context.Context, w io.Writer, each func(item) error) (s summary, err error) {
	for range tries {
		if s, err = d.readOnce(ctx, w, each); !errors.Is(err, errOlder) {
			break
		}
	}
	return s, err
}

// readOnce is read, but returns errOlder, before anything is copied, if the server was at work on a snapshot for another replica.
func (d *Driver) readOnce(ctx context.Context, w io.Writer, each func(item) error) (s summary, err error) {
	c, err := d.dial(ctx)
	if err != nil {
		return s, err
	}
	defer c.close()
	if err := c.supported(); err != nil {
		return s, err
	}
	size, at, err := c.fullSync()
	if err != nil {
		return s, err
	}
	s.at, s.size = at, size
	body := &io.LimitedReader{R: c.r, N: size}
	s.scanned, err = scan(d.cfg.StateDir, io.TeeReader(body, w), each)
	if err == nil && body.N > 0 {
		err = errs.New(errs.Unsupported, "", "the snapshot goes on for %d bytes behind its end", body.N)
	}
	if err == nil {
		s.read, err = d.time(ctx)
	}
	if err != nil {
		s.scanned.close()
	}
	return s, err
}

// fullSync starts a replication from the beginning and returns the size of the snapshot, which follows on the connection, and
// its position. It does not announce support for snapshots of unknown size (capa eof), because servers would then wait for more
// replicas first. A server that is writing a snapshot for another replica answers with that one. Then fullSync waits until it is
// written, so that the next try gets another, and returns errOlder.
func (c *conn) fullSync() (size int64, at position, err error) {
	// A server that supports rdb-only sends no commands after the snapshot. Other servers answer with an error.
	if _, err := c.do("REPLCONF", "rdb-only", "1"); err != nil {
		if _, ok := err.(serverError); !ok {
			return 0, at, err
		}
	}
	now, err := c.position()
	if err != nil {
		return 0, at, err
	}
	if err := c.send("PSYNC", "?", "-1"); err != nil {
		return 0, at, err
	}
	first, err := c.notice()
	if err != nil {
		return 0, at, err
	}
	if _, err := fmt.Sscanf(first, "+FULLRESYNC %40s %d", &at.ID, &at.Offset); err != nil {
		if strings.HasPrefix(first, "-") {
			return 0, at, serverError(first[1:])
		}
		return 0, at, errProtocol
	}
	head, err := c.notice()
	if err != nil {
		return 0, at, err
	}
	if strings.HasPrefix(head, "-") {
		return 0, at, serverError(head[1:])
	}
	size, err = strconv.ParseInt(strings.TrimPrefix(head, "$"), 10, 64)
	if err != nil || size < 0 {
		return 0, at, errProtocol
	}
	if at.ID == now.ID && at.Offset < now.Offset {
		return 0, at, errOlder
	}
	return size, at, nil
}

// notice reads the next line that is not empty: empty lines mean "wait".
func (c *conn) notice() (string, error) {
	for {
		if s, err := c.line(); s != "" || err != nil {
			return s, err
		}
	}
}

// time returns the server's clock, rounded up to a second.
func (d *Driver) time(ctx context.Context) (time.Time, error) {
	c, err := d.dial(ctx)
	if err != nil {
		return time.Time{}, err
	}
	defer c.close()
	v, err := c.do("TIME")
	if err != nil {
		return time.Time{}, err
	}
	list, _ := v.([]any)
	if len(list) != 2 {
		return time.Time{}, errProtocol
	}
	s, _ := list[0].(string)
	sec, err := strconv.ParseInt(s, 10, 64)
	return time.Unix(sec+1, 0), err // rounded up
}
