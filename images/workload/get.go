package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"time"
)

// get prints the body of a URL. It fails if the answer is not 2xx; with --every it prints that and continues.
func get(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	timeout := flags.Duration("timeout", 5*time.Second, "give up on one request after this time")
	every := flags.Duration("every", 0, "ask again after this time, for ever (0: once)")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usagef("want one URL, got %d arguments", len(rest))
	}
	client := &http.Client{Timeout: *timeout}
	for {
		err := fetch(ctx, p, client, rest[0])
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

func fetch(ctx context.Context, p process, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return usageError{err}
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
