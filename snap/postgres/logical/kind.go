package logical

import (
	"context"

	"mulligan/snap/postgres/own"
)

// ServerKind describes the server and its user. See [own.Kind].
func (d *Driver) ServerKind(ctx context.Context) (string, error) {
	const op = "ask the server"
	c, err := d.outside(ctx)
	if err != nil {
		return "", d.classify(op, err)
	}
	defer c.close()
	k := own.Kind{User: d.login.User, Database: d.login.Database, Superuser: c.superuser()}
	k.Major, err = c.version(ctx)
	return k.String(), d.classify(op, err)
}

// Answers returns nil when the server answers.
func (d *Driver) Answers(ctx context.Context) error {
	_, err := d.ServerKind(ctx)
	return err
}
