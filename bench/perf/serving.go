package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// serving is what the API server has answered, and the programs and the machine have used, at a moment or from one to
// another.
type serving struct {
	at, usedAt     time.Time     // of the two parts
	took, usedTook time.Duration // zero: of a moment
	writes         float64       // that the API server has answered
	used           record.Usage  // seconds of CPU
}

// look reads that. It costs the API server the rendering of its metrics, up to some hundredths of a second where there
// is much to do; they are taken to be of the middle of that time. What it uses is left out when the first of two looks
// reads the metrics first, and the last of them last.
func (p *player) look(ctx context.Context, last bool) (s serving, err error) {
	use := func() (err error) {
		s.usedAt = time.Now()
		s.used, err = p.use()
		return err
	}
	if last {
		if err := use(); err != nil {
			return s, err
		}
	}
	asked := time.Now()
	text, err := p.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return s, fmt.Errorf("read the API server's metrics: %w", err)
	}
	s.at, s.writes = asked.Add(time.Since(asked)/2), writesIn(string(text))
	if !last {
		err = use()
	}
	return s, err
}

// less is what came after an earlier look.
func (s serving) less(before serving) serving {
	return serving{
		at:       s.at,
		usedAt:   s.usedAt,
		took:     s.at.Sub(before.at),
		usedTook: s.usedAt.Sub(before.usedAt),
		writes:   s.writes - before.writes,
		used:     s.used.Less(before.used),
	}
}

// cores is what seconds of CPU are of the time in which they were used.
func (s serving) cores(seconds float64) float64 { return seconds / s.usedTook.Seconds() }

// rate is of writes, in a second.
func (s serving) rate() float64 { return s.writes / s.took.Seconds() }

// requestsMetric is the API server's counter of requests, by verb and much else.
const requestsMetric = "apiserver_request_total{"

// writesIn sums it over all that writes, in the Prometheus text format.
func writesIn(text string) (sum float64) {
	for line := range strings.Lines(text) {
		tail, ok := strings.CutPrefix(line, requestsMetric)
		if !ok {
			continue
		}
		labels, value, ok := strings.Cut(tail, "} ")
		if !ok || !isWrite(labels) {
			continue
		}
		if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
			sum += n
		}
	}
	return sum
}

func isWrite(labels string) bool {
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE"} {
		if strings.Contains(labels, `verb="`+verb+`"`) {
			return true
		}
	}
	return false
}
