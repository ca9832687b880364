package redis

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"mulligan/errs"
)

var errBrokenOff = errs.New(errs.Failed, "", "the server broke off the transfer").
	WithHint("look into the server's log: is its disk full?")

// serve acts as a master for the first replica that sends the password, until that replica disconnects. It does not serve other
// clients.
func (m *master) serve(ctx context.Context) error {
	if l, ok := m.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		if err := l.SetDeadline(time.Now().Add(callBack)); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = m.Close() })
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	known := make(chan *conn)
	failed := make(chan error, 1)
	all.Go(func() {
		for {
			raw, err := m.Accept()
			if err != nil {
				failed <- err
				return
			}
			all.Go(func() { m.admit(ctx, raw, known) })
		}
	})
	select {
	case c := <-known:
		defer c.close()
		_ = m.Close() // no other connection is accepted
		return m.lead(c)
	case err := <-failed:
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errs.New(errs.Unavailable, "", "the server did not connect to %s within %s", m.Addr(), callBack).
				WithHint("the server must be able to reach the daemon: not from within a container or behind a firewall")
		}
		return err
	}
}

// admit sends a connection to known once it has sent the password.
func (m *master) admit(ctx context.Context, raw net.Conn, known chan<- *conn) {
	c := wrap(ctx, raw, m.silence)
	for {
		command, err := c.command()
		if err != nil {
			break
		}
		answer := "-NOAUTH Authentication required.\r\n"
		ok := command[0] == "AUTH" && subtle.ConstantTimeCompare([]byte(command[len(command)-1]), []byte(m.password)) == 1
		if ok {
			answer = "+OK\r\n"
		}
		if c.write([]byte(answer)) != nil {
			break
		}
		if ok {
			select {
			case known <- c:
				return
			case <-ctx.Done():
			}
			break
		}
	}
	c.close()
}

// command reads a command, which is a list of strings. It skips the empty lines that a replica sends while it loads.
func (c *conn) command() ([]string, error) {
	for {
		b, err := c.r.ReadByte()
		if err != nil {
			return nil, err
		}
		if b != '\n' && b != '\r' {
			if err := c.r.UnreadByte(); err != nil {
				return nil, err
			}
			break
		}
	}
	v, err := c.answer()
	if err != nil {
		return nil, err
	}
	list, _ := v.([]any)
	var words []string
	for _, w := range list {
		s, ok := w.(string)
		if !ok {
			return nil, errProtocol
		}
		words = append(words, s)
	}
	if len(words) == 0 {
		return nil, errProtocol
	}
	words[0] = strings.ToUpper(words[0])
	return words, nil
}

// lead runs a master's part of replication until the connection ends.
func (m *master) lead(c *conn) error {
	sent := false
	for {
		command, err := c.command()
		if err != nil {
			if sent {
				return errBrokenOff
			}
			return err
		}
		switch command[0] {
		case "PING":
			err = c.write([]byte("+PONG\r\n"))
		case "PSYNC":
			if sent = true; len(command) < 3 {
				return errProtocol
			}
			err = m.give(c, command[1], command[2])
		case "REPLCONF":
			if len(command) < 2 || !strings.EqualFold(command[1], "ack") {
				err = c.write([]byte("+OK\r\n"))
			}
		default:
			err = c.write([]byte("-ERR unknown command\r\n"))
		}
		if err != nil {
			return err
		}
	}
}

// give sends the snapshot. A master that becomes a replica first asks to continue at next, the position after the end of its
// own data. The error is errMoved if that is not the expected position.
func (m *master) give(c *conn, id, next string) error {
	if m.from != nil && (id != m.from.ID || next != strconv.FormatInt(m.from.Offset+1, 10)) {
		return errMoved
	}
	if err := m.begin(); err != nil {
		return err
	}
	r, err := m.content()
	if err != nil {
		return err
	}
	head := fmt.Sprintf("+FULLRESYNC %s 0\r\n$%d\r\n", newID(), m.size)
	if err := c.write([]byte(head)); err != nil {
		return err
	}
	n, err := io.Copy(writerFunc(func(p []byte) (int, error) {
		if err := c.write(p); err != nil {
			return 0, errBrokenOff
		}
		return len(p), nil
	}), r)
	if err == nil && n != m.size {
		err = errs.New(errs.Corrupt, "", "the snapshot has %d bytes instead of %d", n, m.size).WithHint("use another checkpoint")
	}
	return err
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// newID returns a random replication id, which differs from that of any server.
func newID() string {
	var p [20]byte
	_, _ = rand.Read(p[:]) // never fails
	return hex.EncodeToString(p[:])
}
