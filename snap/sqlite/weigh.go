package sqlite

import "context"

// Weigh is the size of the database.
func (d *Driver) Weigh(ctx context.Context) (size int64, err error) {
	const op = "weigh database"
	d.mu.Lock()
	defer d.mu.Unlock()
	err = d.withLive(ctx, op, false, func(l *live) error {
		if l.db != nil {
			size = l.length()
		}
		return nil
	})
	return size, d.classify(op, err)
}
