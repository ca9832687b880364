package snap

import "context"

type progressKey struct{}

// WithProgress returns a context with the function report. Long-running driver methods call report now and then, with their
// progress as a short phrase, in the goroutine of their caller.
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
