package s3store

import (
	"path"
	"regexp"
	"strings"
	"unicode"

	"mulligan/errs"
)

// bucketSyntax is the syntax of buckets' names, see
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html.
var bucketSyntax = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// maxPrefix bounds the length of a prefix: with what mulligan adds, names stay within S3's 1024 bytes.
const maxPrefix = 512

// ParseURL splits s3://BUCKET/PREFIX. The prefix has no slash at its ends, and may be empty.
func ParseURL(text string) (bucket, prefix string, err error) {
	rest, ok := strings.CutPrefix(text, "s3://")
	bucket, prefix, _ = strings.Cut(rest, "/")
	prefix = strings.TrimSuffix(prefix, "/")
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == '?' || r == '#' }
	if !ok || !bucketSyntax.MatchString(bucket) || prefix != "" && (path.Clean("/"+prefix) != "/"+prefix || len(prefix) > maxPrefix || strings.ContainsFunc(prefix, odd)) {
		return "", "", errs.New(errs.Invalid, "read the remote's URL", "%.200q is not the URL of a remote", text).WithHint("write it like s3://BUCKET/PREFIX")
	}
	return bucket, prefix, nil
}
