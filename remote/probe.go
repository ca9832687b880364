package remote

import (
	"bytes"
	"context"

	"mulligan/errs"
	"mulligan/remote/s3store"
)

// Found is what a Probe found.
type Found struct {
	Delete bool // the key can delete objects
	Lock   bool // the bucket locks new objects for a time
}

// Probe checks at a place that a key can do what remotes need: write, read, list, and write only what is not there yet. It leaves an
// object of a few bytes if the key cannot delete.
func Probe(ctx context.Context, b *s3store.Store, place string) (f Found, err error) {
	const op = "check the remote"
	name := place + "/check/" + NewName()
	first, second := []byte(NewName()), []byte(NewName())
	if err := b.PutNew(ctx, name, first); err != nil {
		return f, errs.Wrap(errs.Failed, op+": write", err)
	}
	there, err := b.Get(ctx, name)
	if err != nil {
		return f, errs.Wrap(errs.Failed, op+": read", err)
	}
	list, err := b.List(ctx, name, "")
	if err != nil {
		return f, errs.Wrap(errs.Failed, op+": list", err)
	}
	if !bytes.Equal(there, first) || len(list) != 1 {
		return f, errs.New(errs.Unsupported, op, "the server does not give back what was written")
	}
	switch err := b.PutNew(ctx, name, second); errs.KindOf(err) {
	case errs.Conflict:
	case "":
		return f, errs.New(errs.Unsupported, op, "the server overwrites objects where it was told not to (If-None-Match: *)").
			WithHint("use a server that knows conditional writes: AWS, Ceph from Tentacle (before: in buckets without versions and locks alone), MinIO, R2, versitygw")
	default:
		return f, errs.Wrap(errs.Failed, op+": write only what is not there", err)
	}
	switch err := b.Delete(ctx, name); errs.KindOf(err) {
	case "":
		f.Delete = true
	case errs.Denied, errs.Failed:
	default:
		return f, errs.Wrap(errs.Failed, op+": delete", err)
	}
	f.Lock, err = b.Locks(ctx)
	return f, errs.Wrap(errs.Failed, op, err)
}
