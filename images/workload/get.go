package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// get prints the body of a URL. It fails if the answer is not 2xx; with --every it prints that and continues.
func get(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	timeout := flags.Duration("timeout", 5*time.Second, "give up on one request after this time")
	every := flags.Duration("every", 0, "ask again after this time, for ever (0: once)")
	authority := flags.String("ca-file", "", "certificates of the authorities that the server is checked by")
	token := flags.String("token-file", "", "file of a token to send")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usagef("want one URL, got %d arguments", len(rest))
	}
	client := &http.Client{Timeout: *timeout}
	if *authority != "" {
		if client.Transport, err = trusting(*authority); err != nil {
			return err
		}
	}
	for {
		err := fetch(ctx, p, client, rest[0], *token)
		if *every == 0 {
			return err
		}
		if err != nil {
			p.printf("%v\n", err)
		}
		if !pause(ctx, *every) {
			return nil
		}
	}
}

// trusting returns a transport that checks servers by the certificates of a file.
func trusting(authority string) (*http.Transport, error) {
	text, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: holds no certificate", authority)
	}
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}, nil
}

func fetch(ctx context.Context, p process, client *http.Client, url, token string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return usageError{err}
	}
	if token != "" {
		text, err := os.ReadFile(token)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(text)))
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(p.stdout, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	return nil
}
