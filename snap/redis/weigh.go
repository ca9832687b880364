package redis

import (
	"context"
	"strconv"
)

// Weigh is what the server's data takes in its memory.
func (d *Driver) Weigh(ctx context.Context) (int64, error) {
	const op = "weigh database"
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := d.dial(ctx)
	if err != nil {
		return 0, d.classify(op, err)
	}
	defer c.close()
	m, err := c.info("memory")
	if err != nil {
		return 0, d.classify(op, err)
	}
	all, err := strconv.ParseInt(m["used_memory_dataset"], 10, 64)
	if err != nil {
		return 0, nil // such a server does not say
	}
	return all, nil
}
