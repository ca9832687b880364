package mysql

import (
	"context"
	"strconv"
)

// EstimateSize returns the size of the database's tables as the server reports it, indexes included.
func (d *Driver) EstimateSize(ctx context.Context) (size int64, err error) {
	err = d.Do(ctx, "estimate database size", func() error {
		s, err := d.connect(ctx)
		if err != nil {
			return err
		}
		defer s.end()
		sum, err := s.rows(ctx, `SELECT CAST(COALESCE(SUM(data_length + index_length), 0) AS SIGNED)
			FROM information_schema.tables WHERE table_schema = ? AND table_type = 'BASE TABLE'`, s.db)
		if err == nil && len(sum) != 1 {
			err = errProtocol
		}
		if err == nil {
			size, err = strconv.ParseInt(sum[0][0], 10, 64)
		}
		return err
	})
	return size, err
}
