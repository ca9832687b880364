package snap

import "context"

type progressKey struct{}

// WithProgress returns a context under which a driver's method that takes long calls tell
// now and then with how far it is, in a short phrase. The driver calls tell in the
// goroutine that called the method.
func WithProgress(ctx context.Context, tell func(words string)) context.Context {
	return context.WithValue(ctx, progressKey{}, tell)
}

// Progress gives the func that WithProgress was given; without one it does nothing.
func Progress(ctx context.Context) (tell func(words string)) {
	if tell, ok := ctx.Value(progressKey{}).(func(string)); ok {
		return tell
	}
	return func(string) {}
}
