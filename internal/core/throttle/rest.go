package throttle

import (
	"math"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// rest is what a class of writes takes while no other of ours is in flight.
type rest struct {
	value   time.Duration
	at      unit.Instant    // when value was last brought up to date
	settled bool            // it is the median of restSamples, once at least
	samples []time.Duration // in order, fewer than restSamples
}

const (
	// restSamples are reduced to their median before they count: one slow answer is nobody's nature. Chosen: at 5 ms
	// each they cost a burst 40 ms of every probeEvery.
	restSamples = 8
	// restDoubles is how fast a rest value may rise: twice as much in this time. A server that others keep busy for
	// less is not taken to be slow by nature. Chosen: 20 s; raising it leaves a server that has become slow with
	// fewer writes for longer.
	restDoubles = 20 * time.Second
	// classesMax bounds the classes: there are some twenty resources that we write. Beyond it a class has no rest
	// value, and only refusals and failures count.
	classesMax = 64
)

// learn folds in a write that was alone. Until there are enough for a median, that of those there are counts.
func (l *Limiter) learn(now unit.Instant, o Outcome) {
	r := l.rests[o.Class]
	if r == nil {
		if len(l.rests) >= classesMax {
			return
		}
		r = &rest{}
		l.rests[o.Class] = r
	}
	r.samples = append(r.samples, o.Took)
	slices.Sort(r.samples)
	median := r.samples[(len(r.samples)-1)/2]
	if !r.settled {
		r.value, r.at = median, now
	}
	if len(r.samples) < restSamples {
		return
	}
	if median > r.value {
		most := float64(r.value) * math.Exp2(min(now.Sub(r.at).Seconds()/restDoubles.Seconds(), restDoublesMax))
		median = min(median, time.Duration(min(most, float64(restMax))))
	} else {
		median = (median + r.value + 1) / 2
	}
	r.value, r.at, r.settled, r.samples = median, now, true, r.samples[:0]
}

// Bounds of the arithmetic: a rest value of ten minutes, and so many doublings, are beyond any server.
const (
	restMax        = 10 * time.Minute
	restDoublesMax = 32
)

// isSlow compares an answer with its class at rest. One of a class of which nothing is known is compared with the
// slowest that is known, and makes the next probe come soon.
func (l *Limiter) isSlow(now unit.Instant, o Outcome) bool {
	value := time.Duration(0)
	if r := l.rests[o.Class]; r != nil {
		value = r.value
	} else {
		l.probe.hurry(now)
		for _, r := range l.rests {
			value = max(value, r.value)
		}
	}
	return value > 0 && float64(o.Took) > float64(value)*l.o.Tolerance+float64(slack)
}

// probe finds out which writes are alone in flight, and sees to it under load that some are.
type probe struct {
	next    unit.Instant // when the limit goes down to one
	until   unit.Instant // when that ends, or did
	left    int          // answers until it ends before
	crowded bool         // the writes in flight are not alone
}

// isOn reports whether the limit is one for the sake of the rest values.
func (p *probe) isOn(now unit.Instant) bool { return now < p.until }

// started notes that so many are in flight now.
func (p *probe) started(flying int) { p.crowded = flying > 1 }

// hurry makes the next probe come soon.
func (p *probe) hurry(now unit.Instant) { p.next = min(p.next, max(now, p.until.Add(probeSoon))) }

// turn begins a probe when it is time, and ends it when it has its answers. Either begins a new round.
func (p *probe) turn(now unit.Instant, l *Limiter) {
	switch {
	case p.isOn(now):
		if !p.crowded {
			p.left--
		}
		if p.left <= 0 {
			p.until, p.next = now, now.Add(probeEvery)
			l.restart(now)
		}
	case now >= p.next:
		p.until, p.next, p.left = now.Add(probeMax), now.Add(probeMax+probeEvery), restSamples
		l.restart(now)
	}
}
