package logical

import "context"

// EstimateSize returns the size of the database as the server reports it, indexes included.
func (d *Driver) EstimateSize(ctx context.Context) (size int64, err error) {
	err = d.Do(ctx, "estimate database size", func() error {
		c, err := d.connect(ctx, d.login.Database)
		if err != nil {
			return err
		}
		defer c.close()
		return c.QueryRow(ctx, "SELECT pg_database_size(current_database())").Scan(&size)
	})
	return size, err
}
