package rollback

// verdict is what a receipt's confidence rests on.
type verdict struct {
	done     bool // the app is at the target
	layers   int  // that were restored
	compared int  // of them, those whose contents were read back and are the checkpoint's
	unwell   bool // the health check failed after it
}

// confidence says how certain it is that the app is what the checkpoint holds, and well.
// docs/explanation/checkpoints.md has the table.
func (v verdict) confidence() float64 {
	switch {
	case !v.done:
		return 0
	case v.compared < v.layers && v.unwell:
		return 0.25
	case v.compared < v.layers || v.unwell:
		return 0.5
	}
	return 1
}
