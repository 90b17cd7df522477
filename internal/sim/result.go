package sim

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Result is the result of one policy. Its JSON form is stable: keys may be added, but existing keys do not change.
type Result struct {
	Policy string `json:"policy"`
	// Unknown is how long after its grace period a silent node was marked as silent.
	Unknown Spread `json:"unknownAfterGrace"`
	// Wronged counts nodes that were marked as silent while they and the API server were healthy.
	Wronged int `json:"wronged"`
	Emptied int `json:"nodesEmptied"` // nodes that got a NoExecute taint
	Evicted int `json:"podsEvicted"`
	// EvictedWell counts the evicted pods that served when they were evicted.
	EvictedWell int `json:"podsEvictedThatServed"`
	// Outage is, for each pod whose node was silent or cut off, the time until the node returned or a successor ran.
	Outage      Spread  `json:"podOutage"`
	Waiting     int     `json:"podsOutAtEnd"`
	Requests    int     `json:"requests"` // by the controller
	BusiestSec  int     `json:"requestsInBusiestSecond"`
	ReadyAtEnd  int     `json:"nodesReadyAtEnd"`
	TraceHash   string  `json:"trace"`
	OutageHours float64 `json:"podOutageHours"`
}

// Spread is quantiles of durations, in seconds.
type Spread struct {
	Count int     `json:"count"`
	First float64 `json:"firstSeconds"`
	P50   float64 `json:"p50Seconds"`
	P99   float64 `json:"p99Seconds"`
	Last  float64 `json:"lastSeconds"`
}

func spreadOf(all []time.Duration) Spread {
	if len(all) == 0 {
		return Spread{}
	}
	slices.Sort(all)
	at := func(percent int) float64 { return all[(len(all)*percent+99)/100-1].Seconds() }
	return Spread{Count: len(all), First: all[0].Seconds(), P50: at(50), P99: at(99), Last: all[len(all)-1].Seconds()}
}

// tally is what a world counts.
type tally struct {
	late, outages        []time.Duration // samples of Result.Unknown and Result.Outage
	wronged, emptied     int
	evicted, evictedWell int
	requests             int
	second               unit.Instant // the second that inSecond counts
	inSecond, busiest    int          // requests in that second, and the most in any second
}

func (w *world) noteUnknown(n *node) {
	if n.effect.Silent || n.effect.Cut || n.effect.Delay > 0 || w.apiDown {
		grace := w.policy.Health.Grace
		w.late = append(w.late, w.now.Sub(n.lastSign.Add(grace)))
		return
	}
	w.wronged++
}

func (w *world) countWrite() {
	w.requests++
	if second := w.now / unit.Instant(time.Second); second != w.second {
		w.second, w.inSecond = second, 0
	}
	w.inSecond++
	w.busiest = max(w.busiest, w.inSecond)
}

func (w *world) result() Result {
	r := Result{
		Policy: w.policy.Name, Unknown: spreadOf(w.late), Wronged: w.wronged, Emptied: w.emptied, Evicted: w.evicted,
		EvictedWell: w.evictedWell,
		Outage:      spreadOf(w.outages), Requests: w.requests, BusiestSec: w.busiest,
	}
	for _, n := range w.nodes {
		if n.ready == lifecycle.True {
			r.ReadyAtEnd++
		}
	}
	total := time.Duration(0)
	for _, d := range w.outages {
		total += d
	}
	for _, p := range w.pods.all {
		if !p.gone && !p.terminating && !p.out.IsZero() {
			r.Waiting++
			total += w.now.Sub(p.out)
		}
	}
	r.OutageHours = total.Hours()
	w.flushNotes()
	r.TraceHash = traceText(w.trace.Sum64())
	return r
}
