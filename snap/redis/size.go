package redis

import (
	"context"
	"strconv"
)

// EstimateSize returns the size of the server's data in its memory.
func (d *Driver) EstimateSize(ctx context.Context) (size int64, err error) {
	err = d.Do(ctx, "estimate database size", func() error {
		c, err := d.dial(ctx)
		if err != nil {
			return err
		}
		defer c.close()
		m, err := c.info("memory")
		if err != nil {
			return err
		}
		size, err = strconv.ParseInt(m["used_memory_dataset"], 10, 64)
		if err != nil {
			size = 0 // the server does not report it
		}
		return nil
	})
	return size, err
}
