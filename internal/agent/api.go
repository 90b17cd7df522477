package agent

import (
	"context"

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Bounds of what the agent writes of its pods, beside kubeAPIQPS and eventRecordQPS.
const (
	// writesInFlight is above what the reporter of statuses has (pods.reportWriters), for mirror pods, ends of pods and
	// Events. Chosen.
	writesInFlight = 8
	// writeTolerance is how many times its rest value an answer may take before there are fewer. Where the API server
	// is on this machine, it takes several times as long while pods start, and their statuses are what people wait for.
	// Chosen.
	writeTolerance = 10
)

// dialAPI prepares the API clients; it does not dial.
func (a *Agent) dialAPI(ctx context.Context) error {
	d, err := a.clients()
	if err != nil {
		return err
	}
	a.beats, a.client = d.beats, d.pods
	a.recorder = kube.NewRecorder(ctx, d.events, eventSource, a.o.NodeName)
	return nil
}

// clients are those of the API server. What is written of pods passes a Gate, which gives way to an API server in
// trouble.
type clients struct {
	beats  *kube.Client // the node's own status and Lease: no limit, as upstream's, or a burst of pods made the node look dead
	pods   *kube.Client // everything else
	events *kube.Client // a budget of their own, so that a burst of them does not hold up statuses
}

func (a *Agent) clients() (clients, error) {
	c := a.o.Config
	gate := kube.NewGate(kube.GateOptions{
		Component: "agent",
		Options:   throttle.Options{InFlightMax: writesInFlight, Tolerance: writeTolerance},
	})
	a.metrics.Registry.MustRegister(gate)
	client := func(qps float32, burst int32) (*kube.Client, error) {
		return kube.NewClient(kube.Options{Kubeconfig: a.o.Kubeconfig, UserAgent: "plimsoll-agent", QPS: qps, Burst: int(burst)})
	}
	gated := func(qps float32, burst int32) (*kube.Client, error) {
		plain, err := client(qps, burst)
		if err != nil {
			return nil, err
		}
		return plain.Through(gate)
	}
	var d clients
	var err error
	if d.beats, err = client(-1, 0); err != nil {
		return clients{}, err
	}
	if d.pods, err = gated(float32(*c.KubeAPIQPS), c.KubeAPIBurst); err != nil {
		return clients{}, err
	}
	d.events, err = gated(float32(unlimitedIfZero(*c.EventRecordQPS)), c.EventBurst)
	return d, err
}
