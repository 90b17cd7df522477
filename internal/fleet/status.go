package fleet

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
)

// Status is the state of a fleet. Its JSON form is stable: keys may be added, but existing keys do not change.
type Status struct {
	Nodes      int                 `json:"nodes"`
	Registered int                 `json:"registered"`
	Zones      map[string]int      `json:"zones,omitempty"` // the number of nodes in each
	Faults     map[fault.Kind]int  `json:"faults"`          // the number of nodes with each kind of fault
	Now        map[string]int      `json:"now"`             // the number of nodes by the current effect of their fault
	Uptime     Seconds             `json:"uptimeSeconds"`
	Requests   map[string]Requests `json:"requests"` // "register", "renew", "report"
}

// Requests are the requests of one kind since the start.
type Requests struct {
	Done   int64 `json:"done"`
	Failed int64 `json:"failed"`
	// Durations of the newest requests, from the node's decision to the answer. They include the wait for a slot if the
	// API server is slow (Options.RequestsInFlight).
	P50 Seconds `json:"p50Seconds"`
	P99 Seconds `json:"p99Seconds"`
}

// Seconds is a duration that JSON writes as a number of seconds.
type Seconds float64

func seconds(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// lastMax is how many durations of each kind are kept for quantiles. Chosen: enough for a 99th percentile.
const lastMax = 1000

// tally counts requests. The conductor's goroutine owns it.
type tally struct {
	kinds map[heartbeat.FactKind]*count
}

type count struct {
	done, failed int64
	last         []time.Duration // a ring buffer
}

// requestNames are the names of the kinds of requests, in Status.
var requestNames = map[heartbeat.FactKind]string{heartbeat.Registered: "register", heartbeat.Renewed: "renew",
	heartbeat.Reported: "report"}

func (t *tally) add(f heartbeat.Fact, took time.Duration) {
	if requestNames[f.Kind] == "" {
		return
	}
	if t.kinds == nil {
		t.kinds = map[heartbeat.FactKind]*count{}
	}
	c := t.kinds[f.Kind]
	if c == nil {
		c = &count{}
		t.kinds[f.Kind] = c
	}
	if !f.OK {
		c.failed++
		return
	}
	if len(c.last) < lastMax {
		c.last = append(c.last, took)
	} else {
		c.last[c.done%lastMax] = took
	}
	c.done++
}

// quantile returns the nearest-rank quantile; zero without samples.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min((len(sorted)*percent+99)/100, len(sorted))-1]
}

func (f *fleet) status() Status {
	now := f.clock.Now()
	s := Status{Nodes: len(f.nodes), Registered: f.ready, Uptime: seconds(time.Since(f.start)),
		Faults: map[fault.Kind]int{}, Now: map[string]int{}, Requests: map[string]Requests{}}
	for _, h := range f.nodes {
		if h.zone != "" {
			if s.Zones == nil {
				s.Zones = map[string]int{}
			}
			s.Zones[h.zone]++
		}
		if kind := h.fault.Kind(now); kind != "" {
			s.Faults[kind]++
		}
		s.Now[faultWord(*h.effect.Load())]++
	}
	for kind, name := range requestNames {
		r := Requests{}
		if c := f.tally.kinds[kind]; c != nil {
			sorted := slices.Sorted(slices.Values(c.last))
			r = Requests{Done: c.done, Failed: c.failed, P50: seconds(quantile(sorted, 50)), P99: seconds(quantile(sorted, 99))}
		}
		s.Requests[name] = r
	}
	return s
}

// faultWord returns one word for the effect of a fault.
func faultWord(e fault.Effect) string {
	switch {
	case e.Silent:
		return "silent"
	case e.Cut:
		return "cut"
	case e.NotReady:
		return "notready"
	case e.Delay > 0:
		return "slow"
	}
	return "well"
}
