package kube

import (
	"fmt"
	"net/http"
)

// ReadOnly returns a client like c that can only get, list and watch objects: every other request fails before it is
// sent. Requests that act though they are GET (exec, attach, port-forward and proxy are subresources) fail, too.
func (c *Client) ReadOnly() (*Client, error) {
	config := c.RESTConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return readOnlyTransport{next} })
	return NewClientForConfig(config)
}

// An ErrWrites is the error of a request that a read-only client refuses.
type ErrWrites struct{ Method, Path string }

// Error implements error.
func (e ErrWrites) Error() string {
	return fmt.Sprintf("%s %s: refused: this client only reads", e.Method, e.Path)
}

// readOnlyTransport refuses requests that do not only read.
type readOnlyTransport struct{ next http.RoundTripper }

// RoundTrip is part of http.RoundTripper.
func (rt readOnlyTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	_, subresource := resourceOf(req.URL.Path)
	if req.Method != http.MethodGet || subresource != "" || req.Header.Get("Upgrade") != "" {
		if req.Body != nil {
			_ = req.Body.Close() // the contract of RoundTripper
		}
		return nil, ErrWrites{req.Method, req.URL.Path}
	}
	return rt.next.RoundTrip(req)
}
