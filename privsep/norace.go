//go:build !race

package privsep

const raceDetector = false
