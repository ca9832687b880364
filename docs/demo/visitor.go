package main

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// client is the visitor's browser. It keeps no connection: the app behind the
// address is stopped and started.
var client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// visit gets the app's page: the status and the body.
func (s *stage) visit(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url("/"), nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.Status + "\n" + string(body), err
}

// sign writes into the guestbook, through its form.
func (s *stage) sign(ctx context.Context, name, town, message string) error {
	return s.signAt(ctx, s.url(""), name, town, message)
}

// signAt writes into the guestbook at an address. The page that follows may be broken.
func (s *stage) signAt(ctx context.Context, at, name, town, message string) error {
	form := url.Values{"name": {name}, "town": {town}, "message": {message}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at+"/sign", strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the guestbook answered %s", resp.Status)
	}
	return nil
}

// look prints what a visitor sees.
func (s *stage) look(ctx context.Context) error {
	page, err := s.visit(ctx)
	if err != nil {
		return err
	}
	fmt.Println("   a visitor sees:")
	for _, line := range visible(page) {
		fmt.Println("      │", line)
	}
	return nil
}

var (
	head = regexp.MustCompile(`(?s)<head>.*?</head>`)
	tag  = regexp.MustCompile(`<[^>]*>`)
)

// visible is a page without its markup, line by line.
func visible(page string) []string {
	var lines []string
	text := html.UnescapeString(tag.ReplaceAllString(head.ReplaceAllString(page, ""), ""))
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}
