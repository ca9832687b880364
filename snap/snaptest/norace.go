//go:build !race

package snaptest

const race = false
