package agent

import (
	"context"

	"github.com/plimsoll-dev/plimsoll/internal/agent/identity"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Bounds on the agent's writes about its pods, in addition to kubeAPIQPS and eventRecordQPS.
const (
	// writesInFlight is the largest number of writes in flight. It is above the number of status writers (package
	// statusreport), to leave room for mirror pods, deletions of pods and Events. Chosen.
	writesInFlight = 8
	// writeTolerance is how many times its value at rest the latency of an answer may be before fewer writes are sent.
	// On a machine that also runs the API server, latency is several times higher while pods start, and users wait for
	// exactly those pods' statuses. Chosen.
	writeTolerance = 10

	// eventsOfPod is how many Events of each pod of a full node are remembered, so that one that comes again is counted
	// and not written anew. Chosen: a container that fails again and again has four (pulled, created, started, back-off).
	eventsOfPod = 4
	// eventsLeast is how many are remembered on a small node. Chosen: 110 pods have eight each. With more, the agent
	// keeps more of pods that are long gone, at some 1.2 KiB an Event.
	eventsLeast = 1024
)

// eventsRemembered returns how many Events a node with this many pods remembers: never more than a kubelet, which
// remembers as many as any client.
func eventsRemembered(podsMax int32) int {
	return min(max(eventsLeast, eventsOfPod*int(podsMax)), kube.RememberedDefault)
}

// dialAPI prepares the API clients. It opens no connection.
func (a *Agent) dialAPI(ctx context.Context) error {
	d, err := a.clients()
	if err != nil {
		return err
	}
	a.heartbeats, a.client = d.heartbeats, d.pods
	a.metrics.Registry.MustRegister(clientTTL(a.identity.Leaf))
	a.identity.Register(a.metrics.Registry)
	remembered := eventsRemembered(a.o.Config.MaxPods)
	a.recorder, a.holdEvents = kube.NewHeldRecorder(ctx, d.events, eventSource, a.o.NodeName, remembered)
	return nil
}

// clients are the API clients. Writes about pods are throttled, so that an API server in trouble gets fewer of them.
type clients struct {
	// heartbeats is for the Node's status and Lease. As in the kubelet it has no limit: a burst of pods must not make the
	// node look unreachable.
	heartbeats *kube.Client
	pods       *kube.Client // for everything but heartbeats and Events
	events     *kube.Client // has limits of its own, so that a burst of Events does not delay statuses
}

func (a *Agent) clients() (clients, error) {
	c := a.o.Config
	var err error
	a.identity, err = identity.New(identity.Options{
		NodeName:   a.o.NodeName,
		Kubeconfig: a.o.Kubeconfig,
		Bootstrap:  a.o.Bootstrap,
		CertDir:    a.o.CertDir,
		Renews:     c.RotateCertificates,
		UserAgent:  "plimsoll-agent",
	})
	if err != nil {
		return clients{}, err
	}
	writeThrottle := kube.NewThrottle(kube.ThrottleOptions{
		Component: "agent",
		Options:   throttle.Options{InFlightMax: writesInFlight, Tolerance: writeTolerance},
	})
	a.metrics.Registry.MustRegister(writeThrottle)
	client := func(qps float32, burst int32) (*kube.Client, error) {
		plain, err := a.identity.Client(qps, int(burst))
		if err != nil || a.tracing == nil {
			return plain, err
		}
		return plain.Wrapped(a.tracing.Requests)
	}
	throttled := func(qps float32, burst int32) (*kube.Client, error) {
		plain, err := client(qps, burst)
		if err != nil {
			return nil, err
		}
		return plain.Throttled(writeThrottle)
	}
	var d clients
	if d.heartbeats, err = client(-1, 0); err != nil {
		return clients{}, err
	}
	if d.pods, err = throttled(float32(*c.KubeAPIQPS), c.KubeAPIBurst); err != nil {
		return clients{}, err
	}
	d.events, err = throttled(float32(unlimitedIfZero(*c.EventRecordQPS)), c.EventBurst)
	return d, err
}
