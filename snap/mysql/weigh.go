package mysql

import "context"

// Weigh is what the server says of the size of the database's tables, indexes and all.
func (d *Driver) Weigh(ctx context.Context) (size int64, err error) {
	const op = "weigh database"
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.connect(ctx)
	if err != nil {
		return 0, d.classify(op, err)
	}
	defer s.end()
	err = s.QueryRowContext(ctx, `SELECT CAST(COALESCE(SUM(data_length + index_length), 0) AS SIGNED)
		FROM information_schema.tables WHERE table_schema = ? AND table_type = 'BASE TABLE'`, s.db).Scan(&size)
	return size, d.classify(op, err)
}
