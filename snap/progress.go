package snap

import "context"

type progressKey struct{}

// WithProgress returns a context whose report function a long-running driver method calls
// now and then with its progress, as a short phrase. The method calls report in the goroutine
// of its caller.
func WithProgress(ctx context.Context, report func(words string)) context.Context {
	return context.WithValue(ctx, progressKey{}, report)
}

// Progress returns the report function of ctx, or a function that does nothing.
func Progress(ctx context.Context) (report func(words string)) {
	if report, ok := ctx.Value(progressKey{}).(func(string)); ok {
		return report
	}
	return func(string) {}
}
