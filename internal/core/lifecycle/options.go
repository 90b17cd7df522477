package lifecycle

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Options configure a Monitor. The zero Options do not work; begin with Defaults.
type Options struct {
	// Grace is the node-monitor grace period: how long a node may give no sign of life. Upstream's
	// --node-monitor-grace-period, 50 s: it must exceed the HTTP/2 health check of the agents (30 s + 15 s) and several
	// renewals. A longer time leaves pods longer on dead nodes. A shorter one declares slow nodes unreachable.
	Grace time.Duration
	// StartupGrace replaces Grace for a node that has never reported Ready, counted from its creation. Upstream: 60 s.
	StartupGrace time.Duration
	// FirstSightGrace is the shortest time that a node has to give a sign of life after it was seen for the first time.
	// It must exceed the interval at which a lease is renewed (10 s: a quarter of its 40 s). Chosen: 15 s; never more
	// than Grace.
	FirstSightGrace time.Duration
	// ContactTimeout is how long the API server may give no answer before silence of nodes is ignored. Chosen: 12 s, which
	// is two missed probes at one every 5 s.
	ContactTimeout time.Duration

	// MonitorPeriod is the interval at which all nodes are checked together for the end of their grace period. Zero:
	// each node is checked at that moment. Upstream's --node-monitor-period, 5 s: a silent node is noticed up to one
	// period later.
	MonitorPeriod time.Duration

	// EvictionRate is how many nodes of a zone get a NoExecute taint per second. Upstream's --node-eviction-rate, 0.1.
	// Zero: none.
	EvictionRate float32
	// SecondaryRate replaces EvictionRate in a large zone that is unhealthy (--secondary-node-eviction-rate, 0.01), and
	// when there is no room for the pods.
	SecondaryRate float32
	// UnhealthyZone is the share of a zone's nodes that must be down for the zone to be unhealthy; at least three nodes
	// must be. Upstream's --unhealthy-zone-threshold, 0.55.
	UnhealthyZone float32
	// LargeZone is the number of nodes above which a zone is large. In a zone that is not large, no pods are evicted
	// while it is unhealthy. Upstream's --large-cluster-size-threshold, 50.
	LargeZone int
	// ByRoom lowers the rate to SecondaryRate while the pods that would have to move do not fit on other nodes.
	// Upstream: false.
	ByRoom bool

	// EvictAttempts is how often the eviction of a pod is tried. Zero: until it succeeds. Upstream: 5, within 50 ms
	// (k/k #140639).
	EvictAttempts int

	// Collect deletes pods whose node was deleted, and terminating pods on nodes with the out-of-service taint.
	// Upstream has another controller for that, pod garbage collection; running both does no harm.
	Collect bool
	// OrphanAfter is how long a node must be missing before its pods are deleted. Upstream: 40 s and up to 20 s more.
	OrphanAfter time.Duration

	// Seed spreads the back-off of failed actions. The same seed and history give the same decisions.
	Seed uint64
}

// Defaults returns upstream's values, and this project's where upstream has none.
func Defaults() Options {
	return Options{
		Grace:           50 * time.Second,
		StartupGrace:    60 * time.Second,
		FirstSightGrace: 15 * time.Second,
		ContactTimeout:  12 * time.Second,
		EvictionRate:    0.1,
		SecondaryRate:   0.01,
		UnhealthyZone:   0.55,
		LargeZone:       50,
		ByRoom:          true,
		Collect:         true,
		OrphanAfter:     40 * time.Second,
	}
}

// Check reports all problems of o in one error, with the names of upstream's flags.
func (o Options) Check() error {
	var errs []error
	bad := func(flag string, value any, why string) {
		errs = append(errs, fmt.Errorf("--%s: %v: %s", flag, value, why))
	}
	for _, p := range []struct {
		flag  string
		value time.Duration
	}{{"node-monitor-grace-period", o.Grace}, {"node-startup-grace-period", o.StartupGrace}} {
		if p.value <= 0 {
			bad(p.flag, p.value, "must be above zero; upstream uses 50s and 60s")
		}
	}
	for _, r := range []struct {
		flag  string
		value float32
	}{{"node-eviction-rate", o.EvictionRate}, {"secondary-node-eviction-rate", o.SecondaryRate}} {
		if !(r.value >= 0) || math.IsInf(float64(r.value), 0) {
			bad(r.flag, r.value, "must be nodes per second, zero or above; upstream uses 0.1 and 0.01")
		}
	}
	if !(o.UnhealthyZone >= 0 && o.UnhealthyZone <= 1) {
		bad("unhealthy-zone-threshold", o.UnhealthyZone, "must be a share of nodes, 0 to 1; upstream uses 0.55")
	}
	if o.LargeZone < 0 {
		bad("large-cluster-size-threshold", o.LargeZone, "must not be negative; upstream uses 50")
	}
	if o.MonitorPeriod < 0 {
		bad("node-monitor-period", o.MonitorPeriod, "must not be negative; upstream uses 5s, and 0s is at once")
	}
	if o.EvictAttempts < 0 {
		bad("pod-eviction-attempts", o.EvictAttempts, "must not be negative; upstream uses 5, and 0 is until done")
	}
	if o.OrphanAfter < 0 {
		bad("orphan-quarantine", o.OrphanAfter, "must not be negative; upstream waits 40s")
	}
	return errors.Join(errs...)
}
