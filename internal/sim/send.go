package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// serverParallel is how many requests of the controller the API server processes at once without delay. A request takes
// latency, and that time again for each further serverParallel requests in flight. So the server processes at most 800
// per second, which kube-apiserver and etcd on two cores sustained for binds (measured 2026-11-20). It is assumed that
// nodes' heartbeats leave that much capacity.
const serverParallel = 4

// takes returns how long a request takes if that many are in flight, itself included.
func takes(flying int) time.Duration {
	return latency + latency*time.Duration(flying-1)/serverParallel
}

// sender sends the writes of a policy, as its Limiter or its rate allows: of each kind a number of orders at once, and
// the requests of one order one after the other.
type sender struct {
	limiter *throttle.Limiter // nil: the policy has a rate
	waiting [3][]*order       // by kind: orders that have not begun
	open    [3]int            // by kind: how many have begun and not ended
	next    [3][]*order       // by kind: orders whose next request waits for the limiter
	flying  int               // how many requests are in flight
	free    unit.Instant      // state of the rate's token bucket: it is full if this is at least a burst ago
	ended   []ended           // requests that were answered at this moment
}

// ended is a request that was answered.
type ended struct {
	*order
	answer throttle.Answer
	took   time.Duration
	class  throttle.Class
}

func newSender(now unit.Instant, p Policy) sender {
	if p.QPS > 0 {
		return sender{}
	}
	return sender{limiter: throttle.New(now, throttle.Options{InFlightMax: p.InFlight,
		Tolerance: throttle.ToleranceDefault})}
}

// kind is the kind of an order, as in internal/lifecycle.
func (o *order) kind() throttle.Kind {
	switch {
	case o.Pod == nil:
		return throttle.Mark
	case o.Do == lifecycle.MarkNotReady:
		return throttle.Readiness
	}
	return throttle.Evict
}

// class is the class of the next request of an order.
func (o *order) class() throttle.Class {
	switch {
	case o.Pod != nil && o.Do == lifecycle.MarkNotReady:
		return "PATCH pods/status"
	case o.Pod != nil:
		return "DELETE pods"
	case len(o.Unknown) == 0:
		return "PATCH nodes"
	}
	return []throttle.Class{"PATCH nodes", "PATCH nodes/status", "GET leases"}[min(o.left, 3)-1]
}

// name distinguishes orders of one moment.
func (o *order) name() string {
	if o.Pod != nil {
		return string(o.Pod.ID)
	}
	return o.Node
}

// requests is how many requests an action needs: before a node is marked as silent, its lease is read.
func (o *order) requests() int {
	n := 0
	if len(o.Unknown) > 0 {
		n += 2
	}
	if len(o.Add)+len(o.Drop) > 0 {
		n++
	}
	return max(n, 1)
}

func (s *sender) put(o *order) { s.waiting[o.kind()] = append(s.waiting[o.kind()], o) }

// takeAnswers processes the requests that were answered at this moment, in a fixed order.
func (c *control) takeAnswers(w *world) {
	slices.SortFunc(c.ended, func(a, b ended) int {
		return cmp.Or(cmp.Compare(a.kind(), b.kind()), cmp.Compare(a.name(), b.name()))
	})
	for _, e := range c.ended {
		c.flying--
		if c.limiter != nil {
			c.limiter.Done(w.now, throttle.Outcome{Kind: e.kind(), Class: e.class, Took: e.took, Answer: e.answer})
		}
		if e.left == 0 {
			c.open[e.kind()]--
		} else {
			c.request(w, e.order)
		}
	}
	c.ended = c.ended[:0]
}

// send begins the requests that may begin, the most important first. It returns the moment when more may begin even if
// nothing happens.
func (c *control) send(w *world) (wake unit.Instant) {
	for kind := range c.waiting {
		for len(c.waiting[kind]) > 0 && c.open[kind] < w.policy.InFlight {
			o := c.waiting[kind][0]
			c.waiting[kind] = c.waiting[kind][1:]
			if c.limiter != nil {
				renewed, wanted := c.monitor.Renew(w.now, o.Action)
				if !wanted {
					continue
				}
				o.Action, o.decided = renewed, w.now
			}
			c.open[kind]++
			o.left = o.requests()
			c.request(w, o)
		}
	}
	if c.limiter == nil {
		return 0
	}
	for kind, ok := c.limiter.Next(w.now); ok; kind, ok = c.limiter.Next(w.now) {
		o := c.next[kind][0]
		c.next[kind] = c.next[kind][1:]
		c.flying++
		c.makeRequest(w, o, w.now, takes(c.flying))
	}
	return c.limiter.Wake(w.now)
}

// request queues the next request of an order.
func (c *control) request(w *world, o *order) {
	if c.limiter == nil {
		c.flying++
		c.makeRequest(w, o, c.grant(w), latency)
		return
	}
	c.limiter.Want(w.now, o.kind())
	c.next[o.kind()] = append(c.next[o.kind()], o)
}

// makeRequest makes a request that begins at the moment begins. It takes effect when it is answered, before the
// controller decides again.
func (c *control) makeRequest(w *world, o *order, begins unit.Instant, took time.Duration) {
	if begins > w.now {
		w.at(begins, w.countWrite)
	} else {
		w.countWrite()
	}
	monitor := c.monitor
	w.at(begins.Add(took), func() {
		if w.control.monitor != monitor {
			return // that process has ended, and its requests with it
		}
		e := ended{order: o, took: took, class: o.class()}
		o.left--
		if w.apiDown {
			e.answer, o.left = throttle.Failed, 0
		}
		if o.left == 0 {
			w.write(o)
		}
		c.ended = append(c.ended, e)
	})
}

// grant returns when a request may be made, by a bucket of Burst requests that fills at QPS.
func (c *control) grant(w *world) unit.Instant {
	one := time.Duration(float64(time.Second) / w.policy.QPS)
	c.free = max(c.free, w.now.Add(-time.Duration(w.policy.Burst)*one)).Add(one)
	return max(w.now, c.free)
}
