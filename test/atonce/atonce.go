// Package atonce counts how many requests a server has at a time, for tests of who bounds that.
//
// # Model
//
// A handler says when a request begins and when it ends; the Counter keeps how many there are, and how many there were
// at most.
//
// It bounds nothing, and measures no time.
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

// Begins notes that there is one more.
func (c *Counter) Begins() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.most = max(c.most, c.now)
}

// Ends notes that there is one less.
func (c *Counter) Ends() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
}

// Now is how many there are.
func (c *Counter) Now() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Most is how many there were at most.
func (c *Counter) Most() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

// RefusingServer is an API server in memory that knows nothing, and takes so long to say so: of a bubble's time, in
// which all come together that may. It is reached without a limit of the client's.
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
