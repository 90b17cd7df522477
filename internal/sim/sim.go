// Package sim plays a cluster's nodes and the controller that watches over them in virtual time, through the same cores
// as the real ones: core/heartbeat decides when a node speaks, core/lifecycle what silence means, core/fault what nodes
// suffer. It answers "what happens if a zone is cut off for an hour, under this policy and that one?" in seconds.
//
// # Model
//
// A world is nodes, pods, an API server and one controller, moved by one queue of events. A node's requests take a
// moment, fail while the API server is away or the node is cut off, and change what the API shows; the controller hears
// of it and its Monitor decides; its writes take their time, as many at once as core/throttle allows or at a bounded
// rate, and change what the API shows too. The more of them are in flight, the longer each takes (serverParallel). A
// pod that is evicted gets a successor on another node, if one has room.
//
// Every policy plays the same day: the same faults for the same nodes at the same moments.
//
// # What is not played one by one
//
// A node to which nothing happens coasts (heartbeat.Beat.Coast) to the next moment at which something can happen to it,
// and the Monitor is assured of its signs until then (lifecycle.Monitor.Assured). Options.Exact plays each heartbeat by
// itself: the outcome and the hash of the trace are the same, which a test holds.
//
// # Invariants
//
//   - Options and seed alone decide the outcome. Result.Trace is a hash of everything the controller did and of every
//     change of a node that it could see, each with its moment.
//   - The order in which things of one moment are visited is shuffled from Options.Shuffle; the outcome must not depend
//     on it.
//
// What it simplifies: pods start in two seconds; a zone has the same number of nodes as another; the scheduler takes
// any node with room; Events are not written. "upstream" is a model of upstream's controllers: their pace, their scan
// every five seconds, their twenty requests a second. bench/lifecycle measures the real ones.
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

// Options say what is played.
type Options struct {
	Nodes       int
	Zones       int           // nodes are dealt to them in turn
	PodsPerNode int           // ReplicaSet pods with the default tolerations, at the start
	For         time.Duration // of virtual time
	Seed        uint64        // of all chance
	Shuffle     uint64        // of the order of visits at one moment
	Script      []Event
	Policies    []Policy
	Exact       bool
}

// Policy is a way to watch over nodes.
type Policy struct {
	Name   string
	Health lifecycle.Options
	// Scan is how often the controller looks; zero: when there is something to see.
	Scan time.Duration
	// QPS is how many requests a second it makes, in bursts of Burst; zero: as many as the server bears, by
	// core/throttle.
	QPS, Burst float64
	// InFlight is how many writes of each kind it has begun at once; and without a QPS, how many requests are in flight
	// at most.
	InFlight int
}

// The rates of upstream's controllers: --kube-api-qps, --kube-api-burst, and the workers that write nodes.
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
	return Policy{Name: "upstream", Health: h, Scan: upstreamScan, QPS: upstreamQPS, Burst: upstreamBurst, InFlight: upstreamInFlight}
}

// Ours is plimsoll lifecycle by default.
func Ours() Policy {
	return Policy{Name: "plimsoll", Health: lifecycle.Defaults(), InFlight: ourInFlight}
}

// NodesMax bounds a run: a million nodes need about two gigabytes.
const NodesMax = 1_000_000

// Check reports every problem of o at once.
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

// forMax bounds a run (chosen: a year).
const forMax = 365 * 24 * time.Hour

// Run plays every policy, as many at once as there are processors: they know nothing of each other.
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

// epoch is the calendar at the beginning of every run, and start the monotonic clock.
var epoch = unit.WallOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

const start = unit.Instant(time.Hour)
