package logical

import "context"

// Weigh is what the server says of the database's size, indexes and all.
func (d *Driver) Weigh(ctx context.Context) (size int64, err error) {
	const op = "weigh database"
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := d.connect(ctx, d.login.database)
	if err != nil {
		return 0, d.classify(op, err)
	}
	defer c.close()
	return size, d.classify(op, c.QueryRow(ctx, "SELECT pg_database_size(current_database())").Scan(&size))
}
