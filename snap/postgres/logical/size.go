package logical

import "context"

// EstimateSize returns the server's figure for the size of the database, indexes included.
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
