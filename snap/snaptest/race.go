//go:build race

package snaptest

const race = true
