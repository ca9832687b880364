package snap

import (
	"context"
	"fmt"
	"time"

	"mulligan/errs"
)

type loginTimeKey struct{}

// WithLoginTime returns a context with which drivers wait at most this long for a login at a database's server. It is for a
// capture that somebody waits for, and that can continue without the layer.
func WithLoginTime(ctx context.Context, most time.Duration) context.Context {
	return context.WithValue(ctx, loginTimeKey{}, most)
}

// Login calls login with a context that ends after the time usual, or after the time of WithLoginTime if that is shorter. The
// session that login returns must not depend on this context, which Login cancels. If the time is over, the error says so and
// is of kind errs.Unavailable.
func Login[T any](ctx context.Context, usual time.Duration, login func(context.Context) (T, error)) (T, error) {
	if most, ok := ctx.Value(loginTimeKey{}).(time.Duration); ok {
		usual = min(usual, most)
	}
	bounded, cancel := context.WithTimeout(ctx, usual)
	defer cancel()
	session, err := login(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = &errs.Error{Kind: errs.Unavailable, Message: fmt.Sprintf("the server did not let mulligan in within %s", usual), Err: err,
			Hint: "see whether the server works: it may be stopped or overloaded"}
	}
	return session, err
}
