package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/moby/moby/client"

	"mulligan/errs"
)

// maxOutput bounds, in bytes, the kept output of a command.
const maxOutput = 64 << 10

// exec runs a command in a container, and returns what it printed on both outputs and its exit status.
func (p *Project) exec(ctx context.Context, name string, cmd []string) (string, int, error) {
	var out bytes.Buffer
	kept := &limited{&out}
	status, err := p.Run(ctx, name, Command{Args: cmd, Stdout: kept, Stderr: kept})
	return out.String(), status, err
}

// Command is a command for a container.
type Command struct {
	Args, Env      []string  // Env is added to the container's own variables
	Stdin          io.Reader // nil: it reads nothing
	Stdout, Stderr io.Writer
}

// Run runs a command in a container as the container's own user, and returns its exit status. If an output cannot be written, or ctx ends, Run
// leaves the command, which then finds its inputs and outputs closed.
func (p *Project) Run(ctx context.Context, name string, c Command) (status int, err error) {
	what := "run a command in container " + name
	id, conn, err := p.attach(ctx, name, c.Args, c.Env, c.Stdin != nil)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	if c.Stdin != nil {
		go func() {
			_, _ = io.Copy(conn.Conn, c.Stdin) // a command that ends early says why
			_ = conn.CloseWrite()
		}()
	}
	err = demultiplex(conn.Reader, c.Stdout, c.Stderr)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return 0, p.e.failure(what, err)
	}
	in, err := p.e.api.ExecInspect(ctx, id, client.ExecInspectOptions{})
	return in.ExitCode, p.e.failure(what, err)
}

// attached is a connection to the inputs and outputs of a command in a container.
type attached struct {
	Conn   io.ReadWriteCloser
	Reader *bufio.Reader // reads from Conn
}

// Close ends the connection.
func (a attached) Close() { _ = a.Conn.Close() } // nobody reads or writes any more

// CloseWrite ends the command's input.
func (a attached) CloseWrite() error {
	if c, ok := a.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// attach starts a command in a container and connects to its inputs and outputs.
func (p *Project) attach(ctx context.Context, name string, args, env []string, input bool) (id string, conn attached, err error) {
	what := "run a command in container " + name
	made, err := p.e.api.ExecCreate(ctx, name, client.ExecCreateOptions{Cmd: args, Env: env, AttachStdin: input, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return "", conn, p.e.failure(what, err)
	}
	conn, err = p.e.startExec(ctx, made.ID)
	return made.ID, conn, p.e.failure(what, err)
}

// startExec starts a command that was made. The client's own function for it would connect without [Config.Dial], and wait for the answer without a limit.
func (e *Engine) startExec(ctx context.Context, id string) (conn attached, err error) {
	at := "http://" + client.DummyHost + "/v" + e.api.ClientVersion() + "/exec/" + url.PathEscape(id) + "/start"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, strings.NewReader("{}"))
	if err != nil {
		return conn, err
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Connection": {"Upgrade"}, "Upgrade": {"tcp"}}
	resp, err := e.http.RoundTrip(req)
	if err != nil {
		return conn, err
	}
	both, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		return conn, errs.Also(fmt.Errorf("the engine does not connect to it, and answers %s", resp.Status), resp.Body.Close())
	}
	return attached{both, bufio.NewReader(both)}, nil
}

// The streams of an attached command, as the first byte of a frame's head names them
// (https://docs.docker.com/reference/api/engine/version/v1.47/#tag/Container/operation/ContainerAttach).
const (
	streamOut    = 1
	streamErr    = 2
	streamFailed = 3
)

// demultiplex copies an attached command's outputs to two writers until the end. Unlike the engine's own package it holds no frame in memory:
// the engine may be a user's, and a frame's head may announce 4 GiB.
func demultiplex(r *bufio.Reader, stdout, stderr io.Writer) error {
	var head [8]byte
	for {
		if _, err := io.ReadFull(r, head[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		size := int64(binary.BigEndian.Uint32(head[4:]))
		var to io.Writer
		switch head[0] {
		case streamOut:
			to = stdout
		case streamErr:
			to = stderr
		case streamFailed:
			var said bytes.Buffer
			_, err := io.CopyN(&limited{&said}, r, size)
			return errors.Join(fmt.Errorf("%s", said.Bytes()), err)
		default:
			return errs.New(errs.Failed, "", "the engine answers with the output of an unknown stream, %d", head[0])
		}
		if _, err := io.CopyN(to, r, size); err != nil {
			return err
		}
	}
}

// limited keeps the first maxOutput bytes and drops the rest.
type limited struct{ *bytes.Buffer }

var _ io.Writer = (*limited)(nil)

func (l *limited) Write(b []byte) (int, error) {
	if room := maxOutput - l.Len(); room > 0 {
		l.Buffer.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

// ReadFrom makes [io.Copy] use Write, and not the buffer's own method, which has no limit.
func (l *limited) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{l}, r)
}
