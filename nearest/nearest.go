// Package nearest finds the word that a mistyped one was probably meant to be.
package nearest

import "strings"

// Word returns the entry of known of which word is probably a misspelling, or "" if there is none. The distance of the two is at most 2,
// and at most half of word's length, but 1 is always allowed.
func Word(word string, known []string) string {
	best, least := "", min(2, max(1, len(word)/2))+1
	for _, k := range known {
		if d := distance(normal(word), normal(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// normal returns the form of s for comparisons: keep-last, keepLast and keep_last have the same.
func normal(s string) string {
	return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s))
}

// distance returns the number of bytes to insert, delete, replace or exchange with their neighbour in order to get b from a: the
// optimal string alignment distance (Boytsov, Indexing methods for approximate dictionary searching, 2011, 2.2). It keeps three rows of
// the matrix.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
