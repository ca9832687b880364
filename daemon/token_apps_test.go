package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
)

// refusal makes a request that should be refused. One that is answered, by a stream for example, could last.
func (s *served) refusal(method, path, secret string) (answer, error) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, strings.NewReader("{}"))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 400 {
		return answer{}, fmt.Errorf("it is answered: %s", resp.Status)
	}
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b)}, err
}

// TestTokenOfOneApp: a token that was made for one app reaches no other one, by any route of the API: another app is one that does not exist, by its id as well.
func TestTokenOfOneApp(t *testing.T) {
	s := serveTCP(t, daemon.Options{})
	mine, err := s.d.AddApp(t.Context(), root, ipc.App{Slug: "mine", Workspace: workspace(t)})
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.d.AddApp(t.Context(), root, ipc.App{Slug: "other", Workspace: workspace(t)})
	if err != nil {
		t.Fatal(err)
	}
	cp, err := s.d.Create(t.Context(), root, "other", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	all := s.token(root, ipc.TokenRequest{Scopes: ipc.Scopes}).Secret
	one := s.token(root, ipc.TokenRequest{Scopes: ipc.Scopes, Apps: []string{"mine"}}).Secret
	for secret, want := range map[string][]string{all: {"mine", "other"}, one: {"mine"}} {
		got := s.ask("GET", "/api/apps", "", bearer(secret)...)
		for _, slug := range []string{"mine", "other"} {
			listed := strings.Contains(got.body, `"slug":"`+slug+`"`)
			if expected := slices.Contains(want, slug); got.status != 200 || listed != expected {
				t.Errorf("%s is listed: %v, want %v: %d", slug, listed, expected, got.status)
			}
		}
	}
	if got := s.ask("GET", "/api/apps/"+string(mine.ID), "", bearer(one)...); got.status != 200 {
		t.Errorf("its own app: %d %s", got.status, got.body)
	}

	routes := 0
	for path, methods := range s.document().Paths {
		if !strings.Contains(path, "{app}") {
			continue
		}
		for method := range methods {
			for _, app := range []string{"other", string(other.ID)} {
				at := strings.NewReplacer("{app}", app, "{checkpoint}", string(cp.ID), "{id}", string(cp.ID)).Replace(path)
				at = regexp.MustCompile(`\{\w+\}`).ReplaceAllString(at, "x")
				routes++
				got, err := s.refusal(strings.ToUpper(method), at, one)
				if err != nil {
					t.Errorf("%s %s: %v", method, at, err)
					continue
				}
				if got.kind() == errs.Denied && strings.Contains(got.body, "for the unix socket only") {
					continue
				}
				if got.kind() != errs.NotFound || !strings.Contains(got.body, "app") || strings.Contains(got.body, string(cp.ID)) {
					t.Errorf("%s %s: %d %s", method, at, got.status, got.body)
				}
			}
		}
	}
	if routes < 40 {
		t.Errorf("only %d routes of apps were tried", routes)
	}
	if got := s.ask(http.MethodGet, "/api/apps/other", "", bearer(all)...); got.status != 200 {
		t.Errorf("the other app, afterwards: %d %s", got.status, got.body)
	}
}
