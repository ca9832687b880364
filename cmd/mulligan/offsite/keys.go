package offsite

import (
	"bufio"
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mulligan/errs"
	"mulligan/ipc"
)

// keys returns the caller's credentials, from where other programs for S3 look for them: the environment, or else a profile of the file
// of credentials. The client reads that file, and not the daemon: so it is read with the caller's rights. The keys are empty if there
// are none.
func keys(env func(string) string) (k ipc.BucketKeys, err error) {
	k = ipc.BucketKeys{AccessKey: env("AWS_ACCESS_KEY_ID"), SecretKey: env("AWS_SECRET_ACCESS_KEY"), SessionToken: env("AWS_SESSION_TOKEN")}
	if k.AccessKey != "" || k.SecretKey != "" {
		return k, nil
	}
	path := env("AWS_SHARED_CREDENTIALS_FILE")
	if path == "" {
		path = filepath.Join(env("HOME"), ".aws", "credentials")
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ipc.BucketKeys{}, nil
	}
	if err != nil {
		return k, errs.Wrap(errs.Failed, "read credentials", err)
	}
	defer f.Close()
	in := false
	profile := cmp.Or(env("AWS_PROFILE"), "default")
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if name, ok := strings.CutPrefix(line, "["); ok {
			in = strings.TrimSpace(strings.TrimSuffix(name, "]")) == profile
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !in || !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			k.AccessKey = value
		case "aws_secret_access_key":
			k.SecretKey = value
		case "aws_session_token":
			k.SessionToken = value
		}
	}
	return k, errs.Wrap(errs.Failed, "read "+path, lines.Err())
}

// endpoint returns the URL of the server that the environment names, as other programs for S3 understand it.
func endpoint(env func(string) string) string {
	return cmp.Or(env("AWS_ENDPOINT_URL_S3"), env("AWS_ENDPOINT_URL"))
}

// region returns the region that the environment names.
func region(env func(string) string) string {
	return cmp.Or(env("AWS_REGION"), env("AWS_DEFAULT_REGION"))
}
