// Package atonce counts how many requests a server processes at a time, for tests of code that bounds this.
//
// # Model
//
// A handler reports when a request begins and when it ends; the Counter keeps their current and their greatest number.
//
// It bounds nothing and measures no time.
package atonce

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Counter counts requests. It is safe for concurrent use.
type Counter struct {
	mu        sync.Mutex
	now, most int
}

// Begins counts a request that begins.
func (c *Counter) Begins() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.most = max(c.most, c.now)
}

// Ends counts a request that ends.
func (c *Counter) Ends() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
}

// Now returns how many requests are in progress.
func (c *Counter) Now() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Most returns how many were in progress at most.
func (c *Counter) Most() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

// RefusingServer is an API server in memory that answers every request with "not found" after that time. In a synctest
// bubble all requests that are allowed at once arrive within that time. Its client has no rate limit.
func RefusingServer(takes time.Duration) (*rest.Config, *Counter) {
	s := &refusing{takes: takes}
	return &rest.Config{Host: "http://api.example", Transport: s, QPS: -1}, &s.Counter
}

type refusing struct {
	Counter
	takes time.Duration
}

// RoundTrip is part of http.RoundTripper.
func (s *refusing) RoundTrip(q *http.Request) (*http.Response, error) {
	s.Begins()
	time.Sleep(s.takes)
	s.Ends()
	return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Request: q}, nil
}
