package throttle

import (
	"math"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// rest is how long writes of one class take while no other write of this component is in flight.
type rest struct {
	// The rest value; zero before the first sample.
	value   time.Duration
	at      unit.Instant    // when value was last updated
	learned bool            // value has been the median of restSamples at least once
	samples []time.Duration // sorted, fewer than restSamples
}

const (
	// restSamples are reduced to their median before they change a learned value, so that one slow answer has no
	// effect. Chosen: at 5 ms each they cost a burst 40 ms of every probeEvery.
	restSamples = 8
	// restDoubles is the time in which a rest value may double. A server that others keep busy for less time is not
	// regarded as slow in itself. Chosen: 20 s. With a longer time, a server that has become slow gets fewer writes for
	// longer.
	restDoubles = 20 * time.Second
	// classesMax is the largest number of classes: the project writes some twenty resources. Further classes have no
	// rest value, and for them only refusals and failures count.
	classesMax = 64
)

// learn adds a write that was alone in flight. Until restSamples of them have come, the value is the median of the
// samples so far.
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
	if !r.learned {
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
	r.value = median
	r.at = now
	r.learned = true
	r.samples = r.samples[:0]
}

// Limits of the arithmetic: no server needs a rest value of ten minutes, or that many doublings.
const (
	restMax        = 10 * time.Minute
	restDoublesMax = 32
)

// isSlow compares an answer with the rest value of its class. If the class has none, it uses the largest rest value of
// all classes, and makes the next probe come soon.
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

// probe finds out which writes are alone in flight, and makes sure that some are, even under load. Only its methods and
// Limiter.idle change it.
type probe struct {
	next    unit.Instant // when the next probe begins: the limit is then one
	until   unit.Instant // when the current probe ends at the latest, or when the last one ended
	left    int          // answers after which the current probe ends
	crowded bool         // more than one write is or was in flight together with those in flight now
}

// isOn reports whether a probe is running: the limit is one.
func (p *probe) isOn(now unit.Instant) bool { return now < p.until }

// started records that so many writes are in flight now.
func (p *probe) started(flying int) { p.crowded = flying > 1 }

// hurry makes the next probe come soon.
func (p *probe) hurry(now unit.Instant) { p.next = min(p.next, max(now, p.until.Add(probeSoon))) }

// turn begins a probe when it is due, and ends it when it has its answers. Both begin a new round.
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
		p.until = now.Add(probeMax)
		p.next = now.Add(probeMax + probeEvery)
		p.left = restSamples
		l.restart(now)
	}
}
