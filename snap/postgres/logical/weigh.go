package logical

import "context"

// Weigh is what the server says of the database's size, indexes and all.
func (d *Driver) Weigh(ctx context.Context) (size int64, err error) {
	err = d.Do(ctx, "weigh database", func() error {
		c, err := d.connect(ctx, d.login.database)
		if err != nil {
			return err
		}
		defer c.close()
		return c.QueryRow(ctx, "SELECT pg_database_size(current_database())").Scan(&size)
	})
	return size, err
}
