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
)

// calls is how often an operation of the runtime was called and how long that took in all.
type calls struct {
	count   float64
	seconds float64
}

// runtimeMetric is the kubelet's histogram of its CRI calls; ours has the same name.
const runtimeMetric = "kubelet_runtime_operations_duration_seconds_"

// runtimeCalls reads the agent's counts of CRI calls by operation, with --profile.
func (r *rig) runtimeCalls(ctx context.Context) (map[string]calls, error) {
	if !r.profile {
		return nil, nil
	}
	text, err := r.agentMetrics(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the agent's metrics: %w", err)
	}
	return parseCalls(string(text)), nil
}

// agentMetrics asks the agent itself: the kubelet publishes the machine's address and listens on loopback, so the API
// server's proxy does not reach it.
func (r *rig) agentMetrics(ctx context.Context) ([]byte, error) {
	client, err := rest.HTTPClientFor(r.api)
	if err != nil {
		return nil, err
	}
	url := fmt.Sprintf("https://127.0.0.1:%d/metrics", r.portBase+agentPortOffset)
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

// tellRuntimeCalls prints what has been called since before.
func (r *rig) tellRuntimeCalls(ctx context.Context, before map[string]calls) error {
	if !r.profile {
		return nil
	}
	now, err := r.runtimeCalls(ctx)
	if err != nil {
		return err
	}
	for _, operation := range slices.Sorted(maps.Keys(now)) {
		count := now[operation].count - before[operation].count
		seconds := now[operation].seconds - before[operation].seconds
		if count > 0 {
			mean := time.Duration(seconds / count * float64(time.Second))
			progress("%s:   CRI %-20s %5.0f calls, %6.2f s in all, %s each", r.side.name, operation, count, seconds, mean.Round(10*time.Microsecond))
		}
	}
	return nil
}
