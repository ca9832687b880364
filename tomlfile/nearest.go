package tomlfile

import "strings"

// Nearest is the one of known that word is probably a misspelling of, or "":
// at most two letters, and half of the word, away (Levenshtein's distance).
func Nearest(word string, known []string) string {
	best, least := "", min(2, max(1, len(word)/2))+1
	for _, k := range known {
		if d := distance(normal(word), normal(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// normal makes keep-last, keepLast and keep_last the same word.
func normal(s string) string {
	return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s))
}

// distance is the number of letters to insert, delete or replace to get from a
// to b (Wagner and Fischer, 1974), kept in one row.
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
