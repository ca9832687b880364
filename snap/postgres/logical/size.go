package logical

import "context"

// EstimateSize is what the server says of the database's size, indexes and all.
func (d *Driver) EstimateSize(ctx context.Context) (size int64, err error) {
	err = d.Do(ctx, "estimate database size", func() error {
		c, err := d.connect(ctx, d.login.database)
		if err != nil {
			return err
		}
		defer c.close()
		return c.QueryRow(ctx, "SELECT pg_database_size(current_database())").Scan(&size)
	})
	return size, err
}
