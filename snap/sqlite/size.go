package sqlite

import "context"

// EstimateSize returns the size of the database.
func (d *Driver) EstimateSize(ctx context.Context) (size int64, err error) {
	err = d.Do(ctx, "estimate database size", func() error {
		return d.withLive(ctx, false, func(l *live) error {
			if l.db != nil {
				size = l.length()
			}
			return nil
		})
	})
	return size, err
}
