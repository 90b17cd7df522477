package lifecycle

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Options are what a Monitor judges by. The zero Options cannot work; begin with Defaults.
type Options struct {
	// Grace is how long a node may give no sign. Upstream's --node-monitor-grace-period, 50 s: it must exceed the
	// HTTP/2 health check of the agents (30 s + 15 s) and several renewals. Raising it leaves pods longer on dead
	// nodes, lowering it condemns slow ones.
	Grace time.Duration
	// StartupGrace is Grace for a node that has never reported Ready, from its creation on. Upstream: 60 s.
	StartupGrace time.Duration
	// Hearing is the least time a node is given at first sight. It must exceed the renewal of a lease (10 s: a quarter
	// of its 40 s) with some room. Chosen: 15 s; never more than Grace.
	Hearing time.Duration
	// DeafAfter is how long the API may give no proof of contact before we count as deaf. Chosen: 12 s, two missed
	// probes at one each 5 s.
	DeafAfter time.Duration

	// MonitorPeriod is how often nodes are looked at, all together, whether their grace is over. Zero: each at the moment when it
	// is. Upstream's --node-monitor-period, 5 s: silence is noticed up to so much later.
	MonitorPeriod time.Duration

	// EvictionRate is how many nodes per second of a zone are given a NoExecute taint. Upstream's --node-eviction-rate,
	// 0.1. Zero: none.
	EvictionRate float32
	// SecondaryRate is the same in a large zone that is unhealthy (--secondary-node-eviction-rate, 0.01), and when there
	// is no room.
	SecondaryRate float32
	// UnhealthyZone is the share of a zone's nodes, and at least three, that must be down for the zone to be unhealthy.
	// Upstream's --unhealthy-zone-threshold, 0.55.
	UnhealthyZone float32
	// LargeZone is how many nodes a zone must exceed to be large. In one that is not, an unhealthy zone empties nobody.
	// Upstream's --large-cluster-size-threshold, 50.
	LargeZone int
	// ByRoom lets the pace fall to SecondaryRate while what would have to move does not fit elsewhere. Upstream: false.
	ByRoom bool

	// EvictAttempts is how often the eviction of a pod is tried before it is given up. Zero: until it is done. Upstream: 5,
	// within 50 ms (k/k #140639).
	EvictAttempts int

	// Collect removes pods whose node is gone, and those that were asked to go on a node out of service. Upstream leaves
	// that to another controller, pod garbage collection; both at once do no harm.
	Collect bool
	// OrphanAfter is how long a node must be missing before its pods are removed. Upstream: 40 s and up to 20 s more.
	OrphanAfter time.Duration

	// Seed spreads the pauses between attempts. The same seed and history give the same decisions.
	Seed uint64
}

// Defaults returns upstream's values, and ours where upstream has none.
func Defaults() Options {
	return Options{
		Grace: 50 * time.Second, StartupGrace: 60 * time.Second, Hearing: 15 * time.Second, DeafAfter: 12 * time.Second,
		EvictionRate: 0.1, SecondaryRate: 0.01, UnhealthyZone: 0.55, LargeZone: 50, ByRoom: true,
		Collect: true, OrphanAfter: 40 * time.Second,
	}
}

// Check reports every problem of o at once, by the names of upstream's flags.
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
