package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"syscall"

	"mulligan/errs"
)

const (
	maxBody      = 64 << 10
	maxRedirects = 10
)

// client makes requests without proxies, each with a new connection. On a connection that was kept, an app could still answer
// that was stopped meanwhile.
var client = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxBody},
	CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return errors.New("the URL redirects too often")
		}
		if req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme {
			return http.ErrUseLastResponse // another URL is not this app
		}
		return nil
	},
}

type request struct{ url *url.URL }

func newRequest(text string) (probe, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errs.New(errs.Invalid, op, "the health url is not an http or https URL").
			WithHint("write it like http://127.0.0.1:8080/healthz")
	}
	return request{u}, nil
}

// object returns the URL without its parts that may be secret.
func (r request) object() string {
	return (&url.URL{Scheme: r.url.Scheme, Host: r.url.Host, Path: r.url.Path}).String()
}

func (r request) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, longestTry)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "mulligan health check")
	resp, err := client.Do(req)
	if err != nil {
		return plainly(err)
	}
	defer resp.Body.Close()
	// The body is read to its end, as a browser does: some apps fail if the client closes the connection early.
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)); err != nil {
		return fmt.Errorf("the app answered %s, then the connection broke: %w", resp.Status, plainly(err))
	}
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	return nil
}

// plainly describes the error of a request in a few words. The client's own error repeats the URL.
func plainly(err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("nothing listens there (connection refused)")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return errors.New("the app closed the connection without an answer")
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
