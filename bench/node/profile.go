package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// profile is the counters of the agent and the API server at one time.
type profile struct {
	runtime map[string]calls   // by operation
	api     map[string]float64 // by verb and resource
}

// calls is how often an operation of the runtime was called, and the total duration.
type calls struct {
	count   float64
	seconds float64
}

// takeProfile reads both, with --profile.
func (r *rig) takeProfile(ctx context.Context) (p profile, err error) {
	if !r.profile {
		return p, nil
	}
	text, err := r.readAgent(ctx, "/metrics")
	if err != nil {
		return p, fmt.Errorf("read the agent's metrics: %w", err)
	}
	p.runtime = parseCalls(string(text))
	text, err = r.client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return p, fmt.Errorf("read the API server's metrics: %w", err)
	}
	p.api = parseRequests(string(text))
	return p, nil
}

// printProfile prints the difference of the counters since before.
func (r *rig) printProfile(ctx context.Context, before profile) error {
	if !r.profile {
		return nil
	}
	now, err := r.takeProfile(ctx)
	if err != nil {
		return err
	}
	for _, operation := range slices.Sorted(maps.Keys(now.runtime)) {
		count := now.runtime[operation].count - before.runtime[operation].count
		seconds := now.runtime[operation].seconds - before.runtime[operation].seconds
		if count > 0 {
			mean := time.Duration(seconds / count * float64(time.Second))
			record.Progress("%s:   CRI %-20s %5.0f calls, %7.2f s in all, %s each", r.side.name, operation, count, seconds,
				mean.Round(10*time.Microsecond))
		}
	}
	for _, request := range slices.Sorted(maps.Keys(now.api)) {
		if count := now.api[request] - before.api[request]; count >= apiRequestsShown {
			record.Progress("%s:   API %-40s %5.0f requests", r.side.name, request, count)
		}
	}
	return nil
}

// apiRequestsShown hides the control plane's periodic requests: a batch makes at least one request per pod.
const apiRequestsShown = 10

// metricPaths are what a cluster's Prometheus reads from each node.
var metricPaths = []string{"/metrics", "/metrics/cadvisor", "/metrics/resource"}

// scrapeAgent reads all metrics of the agent once.
func (r *rig) scrapeAgent(ctx context.Context) error {
	for _, path := range metricPaths {
		if _, err := r.readAgent(ctx, path); err != nil {
			return fmt.Errorf("scrape the agent: %w", err)
		}
	}
	return nil
}

// readAgent asks the agent itself: the kubelet publishes the machine's address and listens on loopback, so the API
// server's proxy cannot reach it.
func (r *rig) readAgent(ctx context.Context, path string) ([]byte, error) {
	client, err := rest.HTTPClientFor(r.api)
	if err != nil {
		return nil, err
	}
	url := fmt.Sprintf("https://127.0.0.1:%d%s", r.portBase+agentPortOffset, path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, answer.Status, text)
	}
	return text, err
}

const (
	// runtimeMetric is the kubelet's histogram of its CRI calls; ours has the same name.
	runtimeMetric = "kubelet_runtime_operations_duration_seconds_"
	// requestMetric is the API server's counter of requests; only some of its labels are used.
	requestMetric = "apiserver_request_total"
)

// parseCalls reads lines like NAME_sum{operation_type="run_podsandbox"} 12.5 of the Prometheus text format.
func parseCalls(text string) map[string]calls {
	out := map[string]calls{}
	for line := range strings.Lines(text) {
		tail, ok := strings.CutPrefix(line, runtimeMetric)
		if !ok {
			continue
		}
		kind, tail, _ := strings.Cut(tail, `{operation_type="`)
		operation, tail, ok := strings.Cut(tail, `"}`)
		value, err := strconv.ParseFloat(strings.TrimSpace(tail), 64)
		if !ok || err != nil {
			continue
		}
		c := out[operation]
		switch kind {
		case "sum":
			c.seconds = value
		case "count":
			c.count = value
		default: // a bucket
			continue
		}
		out[operation] = c
	}
	return out
}

// parseRequests sums the API server's counter over all labels except verb, resource and subresource.
func parseRequests(text string) map[string]float64 {
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		tail, ok := strings.CutPrefix(line, requestMetric+"{")
		if !ok {
			continue
		}
		labels, tail, ok := strings.Cut(tail, "} ")
		value, err := strconv.ParseFloat(strings.TrimSpace(tail), 64)
		if !ok || err != nil {
			continue
		}
		request := label(labels, "verb") + " " + label(labels, "resource")
		if sub := label(labels, "subresource"); sub != "" {
			request += "/" + sub
		}
		out[request] += value
	}
	return out
}

// label returns the value of name among labels like a="b",c="d".
func label(labels, name string) string {
	for part := range strings.SplitSeq(labels, ",") {
		if value, ok := strings.CutPrefix(part, name+"="); ok {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}
