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
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"

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

// RefusingServer is an API server that knows nothing, and how to reach it without a limit of the client's.
func RefusingServer(t testing.TB) (*rest.Config, *Counter) {
	var requests Counter
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Begins()
		runtime.Gosched()
		requests.Ends()
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, QPS: -1}, &requests
}
