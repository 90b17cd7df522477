package kubeletconfig

import (
	"fmt"
	"net/url"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// samplingMax is the largest samplingRatePerMillion: every request is recorded.
const samplingMax = 1_000_000

// collectorSchemes are the schemes of an endpoint that has one. gRPC resolves them.
var collectorSchemes = map[string]bool{"dns": true, "unix": true, "unix-abstract": true}

func validateTracing(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	if c.Tracing == nil {
		return
	}
	if rate := c.Tracing.SamplingRatePerMillion; rate != nil && (*rate < 0 || *rate > samplingMax) {
		p.add("tracing.samplingRatePerMillion", *rate, fmt.Sprintf("want 0 to %d", samplingMax))
	}
	if c.Tracing.Endpoint == nil {
		return
	}
	endpoint := *c.Tracing.Endpoint
	whole := endpoint
	if !strings.Contains(whole, "//") {
		whole = "dns://" + whole
	}
	if u, err := url.Parse(whole); err != nil {
		p.add("tracing.endpoint", endpoint, "want host:port, dns://, unix:// or unix-abstract://: "+err.Error())
	} else if !collectorSchemes[u.Scheme] {
		p.add("tracing.endpoint", endpoint, "want host:port, dns://, unix:// or unix-abstract:// of a collector that "+
			"takes OTLP over gRPC")
	}
}
