package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// ReadOnly returns a client like c that can only get, list and watch objects: every other request fails before it is
// sent. Requests that act though they are GET (exec, attach, port-forward and proxy are subresources) fail, too. It can
// ask the nodes' agents through the API server (nodes/NAME/proxy) for what is at agentPaths, such as /stats/summary.
func (c *Client) ReadOnly(agentPaths ...string) (*Client, error) {
	config := c.RESTConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return readOnlyTransport{next, agentPaths} })
	return NewClientForConfig(config)
}

// An ErrWrites is the error of a request that a read-only client refuses.
type ErrWrites struct{ Method, Path string }

// Error implements error.
func (e ErrWrites) Error() string {
	return fmt.Sprintf("%s %s: refused: this client only reads", e.Method, e.Path)
}

// readOnlyTransport refuses requests that do not only read.
type readOnlyTransport struct {
	next       http.RoundTripper
	agentPaths []string
}

// RoundTrip is part of http.RoundTripper.
func (rt readOnlyTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet || req.Header.Get("Upgrade") != "" || !rt.mayGet(req.URL.Path) {
		if req.Body != nil {
			_ = req.Body.Close() // the contract of RoundTripper
		}
		return nil, ErrWrites{req.Method, req.URL.Path}
	}
	return rt.next.RoundTrip(req)
}

func (rt readOnlyTransport) mayGet(path string) bool {
	parts := partsOf(path)
	if len(parts) < 3 { // no subresource
		return true
	}
	return parts[0] == "nodes" && parts[2] == "proxy" &&
		slices.Contains(rt.agentPaths, "/"+strings.Join(parts[3:], "/"))
}
