package engine

import (
	"bytes"
	"context"
	"io"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
)

// maxOutput bounds, in bytes, the kept output of a command.
const maxOutput = 64 << 10

// exec runs a command in a container, and returns what it printed on both outputs and its exit status.
func (p *Project) exec(ctx context.Context, name string, cmd []string) (string, int, error) {
	made, err := p.e.api.ExecCreate(ctx, name, client.ExecCreateOptions{Cmd: cmd, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return "", 0, p.e.failure("run a command in "+name, err)
	}
	conn, err := p.e.api.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return "", 0, p.e.failure("run a command in "+name, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	var out bytes.Buffer
	if _, err := stdcopy.StdCopy(&limited{&out}, &limited{&out}, conn.Reader); err != nil && ctx.Err() == nil {
		return "", 0, p.e.failure("run a command in "+name, err)
	}
	if ctx.Err() != nil {
		return "", 0, p.e.failure("run a command in "+name, ctx.Err())
	}
	in, err := p.e.api.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
	return out.String(), in.ExitCode, p.e.failure("run a command in "+name, err)
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
