package tomlfile

import "strings"

// Nearest returns the entry of known of which word is probably a misspelling, or "" if there is none. The Levenshtein distance
// of the two is at most 2, and at most half of word's length, but 1 is always allowed.
func Nearest(word string, known []string) string {
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

// distance returns the number of bytes to insert, delete or replace in order to get b from a (Wagner and Fischer, 1974). It
// keeps only one row of the matrix.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j+1]+1, row[j]+1, diagonal+cost)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
