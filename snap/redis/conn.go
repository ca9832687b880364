package redis

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
)

// conn is a connection with the protocol RESP2 (https://redis.io/docs/latest/develop/reference/protocol-spec/), as far as
// replication needs it. It is not safe for concurrent use.
type conn struct {
	net.Conn
	r       *bufio.Reader
	silence time.Duration // longest time without data from the other side
	release func() bool
}

// serverError is an error in an answer of the server.
type serverError string

func (e serverError) Error() string { return string(e) }

// code returns the first word of the error: NOAUTH, NOPERM, LOADING, ERR …
func (e serverError) code() string {
	code, _, _ := strings.Cut(string(e), " ")
	return code
}

// wrap returns a conn that is closed when ctx ends.
func wrap(ctx context.Context, c net.Conn, silence time.Duration) *conn {
	w := &conn{Conn: c, silence: silence}
	w.r = bufio.NewReaderSize(readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := c.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return 0, err
		}
		return c.Read(p)
	}), 64<<10)
	w.release = context.AfterFunc(ctx, func() { _ = c.Close() })
	return w
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// close ends the connection. It ignores errors, because nothing can be lost.
func (c *conn) close() {
	c.release()
	_ = c.Close()
}

// dial connects to the server and logs in.
func (d *Driver) dial(ctx context.Context) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	raw, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	c := wrap(ctx, raw, d.cfg.Timeout)
	_, err = snap.Login(ctx, d.cfg.Timeout, func(ctx context.Context) (struct{}, error) {
		release := context.AfterFunc(ctx, func() { _ = raw.Close() })
		defer release()
		return struct{}{}, c.login(d.server)
	})
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *conn) login(a address) error {
	switch {
	case a.user != "":
		_, err := c.do("AUTH", a.user, a.password)
		return err
	case a.password != "":
		_, err := c.do("AUTH", a.password)
		return err
	}
	// Without a password, the server sends nothing by itself, so login sends a PING to see that a server answers. If the answer
	// is an error, the next command will get it too.
	_, err := c.do("PING")
	if _, said := err.(serverError); said {
		return nil
	}
	return err
}

// send writes a command.
func (c *conn) send(args ...string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return c.write([]byte(b.String()))
}

func (c *conn) write(p []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(c.silence)); err != nil {
		return err
	}
	_, err := c.Write(p)
	return err
}

// do sends a command and returns the answer: a string, an int64, a list of these, or nil.
func (c *conn) do(args ...string) (any, error) {
	if err := c.send(args...); err != nil {
		return nil, err
	}
	return c.answer()
}

// text sends a command whose answer must be a string, and returns the answer.
func (c *conn) text(args ...string) (string, error) {
	v, err := c.do(args...)
	if err != nil {
		return "", err
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s was answered with %T", args[0], v)
	}
	return s, nil
}

// line returns the next line, without its end.
func (c *conn) line() (string, error) {
	s, err := c.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", errProtocol
	}
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(s), "\n"), "\r"), nil
}

var errProtocol = errors.New("it is not a Redis server")

// answer reads an answer of at most maxReply bytes.
func (c *conn) answer() (any, error) {
	room := int64(maxReply)
	return c.element(0, &room)
}

// element reads an answer, or an element of an answer, and subtracts its size from room. It returns an error if room becomes
// negative.
func (c *conn) element(depth int, room *int64) (any, error) {
	s, err := c.line()
	if err != nil {
		return nil, err
	}
	if *room -= int64(len(s)) + perItem; *room < 0 {
		return nil, errLongReply
	}
	if s == "" || depth > 8 {
		return nil, errProtocol
	}
	switch s[0] {
	case '+':
		return s[1:], nil
	case '-':
		return nil, serverError(s[1:])
	}
	n, err := strconv.ParseInt(s[1:], 10, 64)
	if err != nil {
		return nil, errProtocol
	}
	switch {
	case s[0] == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case n > *room:
		return nil, errLongReply
	case s[0] == '$':
		*room -= n
		p := make([]byte, n+2)
		_, err := io.ReadFull(c.r, p)
		return string(p[:n]), err
	case s[0] == '*':
		var list []any
		for ; n > 0; n-- {
			v, err := c.element(depth+1, room)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	}
	return nil, errProtocol
}

// info returns a section of INFO.
func (c *conn) info(section string) (map[string]string, error) {
	s, err := c.text("INFO", section)
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for line := range strings.Lines(s) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			m[name] = value
		}
	}
	return m, nil
}

// config returns a setting of the server, or "" if there is none.
func (c *conn) config(name string) (string, error) {
	v, err := c.do("CONFIG", "GET", name)
	if err != nil {
		return "", err
	}
	if list, ok := v.([]any); ok && len(list) == 2 {
		if s, ok := list[1].(string); ok {
			return s, nil
		}
	}
	return "", nil
}

// position is a point in the history of a server's data. Equal positions mean equal data, because the server changes the id
// whenever it cannot continue the history.
type position struct {
	ID     string `json:"id"`
	Offset int64  `json:"offset"`
}

func (p position) String() string { return p.ID + ":" + strconv.FormatInt(p.Offset, 10) }

func (c *conn) position() (position, error) {
	m, err := c.info("replication")
	if err != nil {
		return position{}, err
	}
	n, err := strconv.ParseInt(m["master_repl_offset"], 10, 64)
	return position{m["master_replid"], n}, err
}

// supported returns an error unless the server is a single master.
func (c *conn) supported() error {
	m, err := c.info("server")
	if err != nil {
		return err
	}
	r, err := c.info("replication")
	if err != nil {
		return err
	}
	mode, what := cmp.Or(m["redis_mode"], m["server_mode"]), "" // Valkey uses server_mode
	switch {
	case mode == "cluster":
		what = "is a node of a cluster"
	case mode == "sentinel":
		what = "is a sentinel, which holds no data"
	case r["role"] != "master":
		what = "is a replica of " + net.JoinHostPort(r["master_host"], r["master_port"])
	default:
		return nil
	}
	e := errs.New(errs.Unsupported, "", "the server %s", what)
	if r["role"] == "slave" {
		return e.WithHint("register its master instead")
	}
	return e.WithHint("only a server on its own can be captured and restored")
}

// warnings returns a warning if a restore would also change other databases than the app's.
func (c *conn) warnings() ([]string, error) {
	m, err := c.info("keyspace")
	if err != nil {
		return nil, err
	}
	if len(m) < 2 {
		return nil, nil
	}
	var names []string
	for i := range 1 << 14 {
		if name := "db" + strconv.Itoa(i); m[name] != "" {
			names = append(names, name)
		}
	}
	return []string{fmt.Sprintf("The server's databases (%s) are captured and restored together.", strings.Join(names, ", "))}, nil
}

// classify gives an error without a kind a kind and a hint.
func (d *Driver) classify(op string, err error) error {
	if err == nil {
		return nil
	}
	var known *errs.Error
	if errors.As(err, &known) {
		return errs.Wrap(errs.Failed, op, err)
	}
	e := &errs.Error{Kind: errs.Failed, Op: op, Message: "the server at " + d.server.String(), Err: err}
	var said serverError
	var network net.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e.Kind = errs.Unavailable
	case errors.As(err, &said):
		d.classifyAnswer(e, said)
	case errors.Is(err, unix.ENOSPC):
		e.Hint = "free some disk space"
	case errors.Is(err, errProtocol):
		e.Kind, e.Hint = errs.Invalid, "check the dsn's host and port, and whether the server wants TLS (rediss://)"
	case errors.Is(err, os.ErrPermission):
		e.Kind, e.Hint = errs.Denied, "the app's owner must be allowed to open the socket"
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, unix.ENOENT):
		e.Kind, e.Hint = errs.Unavailable, "see whether the Redis server runs, and look into its log"
	}
	return e
}

func (d *Driver) classifyAnswer(e *errs.Error, said serverError) {
	switch said.code() {
	case "NOAUTH", "WRONGPASS":
		e.Kind, e.Hint = errs.Denied, "check the user and the password in the database's dsn"
	case "NOPERM":
		e.Kind, e.Hint = errs.Denied, "the user needs +psync +replconf +replicaof +info +config|get +config|set +time +bgsave"
	case "LOADING", "BUSY", "MASTERDOWN":
		e.Kind, e.Hint = errs.Busy, "try again when the server is ready"
	case "MISCONF":
		e.Hint = "the server cannot write to its disk: see its log"
	default:
		if strings.HasPrefix(string(said), "ERR unknown command") {
			e.Kind, e.Hint = errs.Unsupported, "the server has this command renamed or disabled: allow it"
		}
	}
}
