package sqlite

import "context"

// Weigh is the size of the database.
func (d *Driver) Weigh(ctx context.Context) (size int64, err error) {
	err = d.Do(ctx, "weigh database", func() error {
		return d.withLive(ctx, false, func(l *live) error {
			if l.db != nil {
				size = l.length()
			}
			return nil
		})
	})
	return size, err
}
