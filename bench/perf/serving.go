package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// serving is the writes that the API server has answered, and the CPU time of the programs and of the machine: totals
// at a time, or differences between two times.
type serving struct {
	at, usedAt     time.Time     // when writes and when used were read
	took, usedTook time.Duration // for differences: the length of the interval; zero: totals
	writes         float64       // answered by the API server
	used           record.Usage  // CPU time
}

// look reads the totals. Rendering the metrics costs the API server up to some hundredths of a second if there are
// many; the values count as those of the middle of this time. The cost itself is not in the difference of two readings
// if the first reads the metrics first, and the second reads them last.
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

// less returns the differences since an earlier reading.
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

// cores returns the average number of cores for CPU time used in the interval.
func (s serving) cores(seconds float64) float64 { return seconds / s.usedTook.Seconds() }

// rate returns the writes per second.
func (s serving) rate() float64 { return s.writes / s.took.Seconds() }

// requestsMetric is the API server's counter of requests, by verb and other labels.
const requestsMetric = "apiserver_request_total{"

// writesIn returns the sum of that counter over all verbs that write. text has the Prometheus text format.
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
