package agent

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
)

// podCIDRsRetry is the pause after the runtime did not take the ranges. Chosen: the kubelet tries again with its next
// report of the Node's status, every 10 s.
const podCIDRsRetry = 10 * time.Second

// podCIDRs tells the container runtime which ranges the addresses of the node's pods are from (podCIDRs of the Node),
// as the kubelet does. A runtime that has a template of its network's configuration fills it in with them.
type podCIDRs struct {
	latest chan string // has the ranges that run has not told yet; only the last ones matter
}

func newPodCIDRs() podCIDRs { return podCIDRs{latest: make(chan string, 1)} }

// receive notes the ranges of a Node as the API server has it. It is called by one goroutine at a time.
func (p podCIDRs) receive(ranges []string) {
	select {
	case <-p.latest:
	default:
	}
	p.latest <- strings.Join(ranges, ",")
}

// runtimeConfig is the part of the CRI that podCIDRs uses; *cri.Client implements it.
type runtimeConfig interface {
	UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest,
		...grpc.CallOption) (*runtimeapi.UpdateRuntimeConfigResponse, error)
}

// run tells the runtime until ctx ends: once for each change, and once when the agent starts, since the runtime may
// have been started again.
func (p podCIDRs) run(ctx context.Context, runtime runtimeConfig) {
	var failures failurelog.Log
	const action = "tell the runtime the addresses of pods"
	var told, want string
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case want = <-p.latest:
		case <-retry.C:
		}
		if want == "" || want == told {
			continue // as in the kubelet, ranges are never taken back
		}
		ask, cancel := context.WithTimeout(ctx, callMax)
		_, err := runtime.UpdateRuntimeConfig(ask, &runtimeapi.UpdateRuntimeConfigRequest{
			RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: want}},
		})
		cancel()
		if err != nil {
			failures.Failed(action, fmt.Errorf("podCIDRs %s: %w", want, err))
			retry.Reset(podCIDRsRetry)
			continue
		}
		failures.Succeeded(action)
		slog.Info("the runtime knows the addresses of pods", "podCIDRs", want)
		told = want
	}
}
