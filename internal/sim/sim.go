// Package sim simulates a cluster's nodes and the lifecycle controller in virtual time, with the same cores as the real
// ones: core/heartbeat decides when a node renews and reports, core/lifecycle how to react to silence, core/fault what
// faults do to nodes. In seconds it shows, for example, what happens under different policies if a zone is cut off for
// an hour.
//
// # Model
//
// A world is nodes, pods, an API server and one controller, driven by one queue of events. A node's requests take a
// short time, fail while the API server is down or the node is cut off, and change the API's objects. The controller's
// Monitor receives these changes and decides. The controller's writes take time, are limited by core/throttle or by a
// rate, and change the API's objects too. The more of them are in flight, the longer each takes (serverParallel). A pod
// that is evicted gets a successor on another node, if one has room.
//
// Every policy is simulated with the same events: the same faults for the same nodes at the same moments.
//
// # Heartbeats that are not simulated individually
//
// A node to which nothing happens coasts (heartbeat.Beat.Coast) to the next moment at which something can happen to it,
// and the Monitor gets its renewals up to then at once (lifecycle.Monitor.Assured). With Options.Exact each heartbeat
// is simulated individually: the result and the hash of the trace are the same, which a test checks.
//
// # Invariants
//
//   - The options and the seed alone determine the result. Result.TraceHash is a hash of everything the controller did
//     and of every change of a node that it could observe, each with its time.
//   - The order in which things of one moment are processed is shuffled by Options.Shuffle; the result must not depend
//     on it.
//
// Simplifications: pods start in two seconds; all zones have the same number of nodes; the scheduler takes any node
// with room; Events are not written. The policy "upstream" is a model of upstream's controllers, with their rates,
// their scan every five seconds and their twenty requests per second. bench/lifecycle measures the real ones.
package sim

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Options say what is simulated.
type Options struct {
	Nodes       int
	Zones       int           // nodes are assigned to them in rotation
	PodsPerNode int           // ReplicaSet pods with the default tolerations, at the start
	For         time.Duration // of virtual time
	Seed        uint64        // of all random choices
	Shuffle     uint64        // seed of the order in which things of one moment are processed
	Script      []Event       // events, by time
	Policies    []Policy      // to be compared
	Exact       bool          // no node coasts: every heartbeat is simulated
}

// Policy is the configuration of a controller.
type Policy struct {
	Name   string
	Health lifecycle.Options
	// Scan is the interval of the controller's scans; zero: it decides whenever something changes or is due.
	Scan time.Duration
	// QPS is how many requests per second it makes, in bursts of Burst; zero: as many as core/throttle allows.
	QPS, Burst float64
	// InFlight is how many writes of each kind are in progress at once; without a QPS also how many requests may be in
	// flight.
	InFlight int
}

// The rates of upstream's controllers: --kube-api-qps, --kube-api-burst, and the number of workers that write nodes.
const (
	upstreamScan     = 5 * time.Second
	upstreamQPS      = 20
	upstreamBurst    = 30
	upstreamInFlight = 8
	ourInFlight      = 32 // lifecycle.WritesInFlightDefault
)

// Upstream is a model of upstream's controllers.
func Upstream() Policy {
	h := lifecycle.Defaults()
	h.ByRoom = false
	return Policy{Name: "upstream", Health: h, Scan: upstreamScan, QPS: upstreamQPS, Burst: upstreamBurst,
		InFlight: upstreamInFlight}
}

// Ours is plimsoll lifecycle with its defaults.
func Ours() Policy {
	return Policy{Name: "plimsoll", Health: lifecycle.Defaults(), InFlight: ourInFlight}
}

// NodesMax bounds a run. Chosen: a million nodes need about two gigabytes of memory.
const NodesMax = 1_000_000

// Check returns every problem of o at once.
func (o *Options) Check() error {
	var errs []error
	bad := func(flag string, value any, want string) {
		errs = append(errs, fmt.Errorf("--%s %v: %s", flag, value, want))
	}
	if o.Nodes < 1 || o.Nodes > NodesMax {
		bad("nodes", o.Nodes, fmt.Sprintf("want 1 to %d", NodesMax))
	}
	if o.Zones < 1 || o.Zones > max(o.Nodes, 1) {
		bad("zones", o.Zones, "want at least 1, and not more than nodes")
	}
	if o.PodsPerNode < 0 || o.PodsPerNode > podsMax {
		bad("pods-per-node", o.PodsPerNode, fmt.Sprintf("want 0 to %d", podsMax))
	}
	if o.For <= 0 || o.For > forMax {
		bad("for", o.For, fmt.Sprintf("want a duration up to %v", forMax))
	}
	if len(o.Policies) == 0 {
		errs = append(errs, errors.New("--policy: none: want at least one"))
	}
	for _, p := range o.Policies {
		if err := p.Health.Check(); err != nil {
			errs = append(errs, fmt.Errorf("--policy %s: %w", p.Name, err))
		}
	}
	errs = append(errs, o.checkScript()...)
	return errors.Join(errs...)
}

// forMax bounds the virtual time of a run (chosen: a year).
const forMax = 365 * 24 * time.Hour

// Run simulates the policies, as many at once as there are processors, since they are independent.
func Run(o Options) ([]Result, error) {
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	results := make([]Result, len(o.Policies))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i, p := range o.Policies {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			w := newWorld(&o, p)
			w.play()
			results[i] = w.result()
		})
	}
	all.Wait()
	return results, nil
}

// epoch is the wall clock at the beginning of every run, and start the monotonic clock (chosen: any but zero).
var epoch = unit.WallOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

const start = unit.Instant(time.Hour)
