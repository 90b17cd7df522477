package console

import (
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// ReadOnly returns a client that refuses every request but GET before it is sent.
func ReadOnly(c *kube.Client) (*kube.Client, error) {
	config := c.RESTConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return onlyGet{next} })
	return kube.NewClientForConfig(rest.CopyConfig(config))
}

type onlyGet struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o onlyGet) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		return nil, fmt.Errorf("%s %s: the console only reads", r.Method, r.URL.Path)
	}
	return o.next.RoundTrip(r)
}
