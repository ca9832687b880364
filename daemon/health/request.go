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

// client asks without proxies, and anew each time: a connection kept from
// before would say that an app is there which was stopped meanwhile.
var client = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxBody},
	CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return errors.New("the URL redirects too often")
		}
		if req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme {
			return http.ErrUseLastResponse // elsewhere is not this app
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

// object is the URL without what may be secret in it.
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
	// The body is read, as a browser would, for apps that fault a reader who leaves early.
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)); err != nil {
		return fmt.Errorf("the app answered %s, then the connection broke: %w", resp.Status, plainly(err))
	}
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	return nil
}

// plainly says in a few words what became of a request; the client's own error
// repeats the URL.
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
