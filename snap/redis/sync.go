package redis

import (
	"context"
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

// read requests a snapshot from the server as a replica does, copies it to w, and calls each for its keys. The server forks at
// once; at is the position of that moment. The caller must close the result's scanned.
func (d *Driver) read(ctx context.Context, w io.Writer, each func(item) error) (s summary, err error) {
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
// replicas first.
func (c *conn) fullSync() (size int64, at position, err error) {
	// A server that supports rdb-only sends no commands after the snapshot. Other servers answer with an error.
	if _, err := c.do("REPLCONF", "rdb-only", "1"); err != nil {
		if _, ok := err.(serverError); !ok {
			return 0, at, err
		}
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
