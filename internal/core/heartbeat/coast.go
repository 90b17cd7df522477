package heartbeat

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Coast plays a node to which nothing happens, up to but not at until: every request is answered well, latency after it was
// sent, and its status does not change. It leaves the Beat as Step would have left it, and is there for simulators, which
// have a hundred million such heartbeats to play: a few nanoseconds each.
//
// It stops before the first action that would not be answered before until. It plays nothing while an attempt is under way
// or has failed, while a change is unsent, and for Beats that watch over a runtime or a main loop. It returns when the last
// renewal and the last report were sent; zero: none was.
func (b *Beat) Coast(until unit.Instant, latency time.Duration) (renewed, reported unit.Instant) {
	if !b.coasts() {
		return 0, 0
	}
	renewEvery := b.c.LeaseDuration / renewFraction
	for {
		// When the answers come. A status is computed before a report is sent, or after it was answered.
		renewal, report, compute := b.lease.due.Add(latency), b.report.due.Add(latency), b.compute.due
		if compute > b.report.due {
			compute = max(compute, report)
		}
		switch first := min(renewal, report, compute); {
		case first >= until:
			return renewed, reported
		case first == renewal:
			renewed = b.lease.due
			b.lease.due = renewal.Add(b.spread(renewEvery))
		case first == report:
			reported, b.compute.due = b.report.due, compute // which may have waited
			b.reportBy = report.Add(b.spread(b.c.ReportEvery))
			b.report.due = b.reportBy
		default:
			b.compute.due = compute.Add(b.spread(b.c.UpdateEvery))
		}
	}
}

// coasts reports whether nothing is going on with b.
func (b *Beat) coasts() bool {
	for _, a := range []*action{&b.lease, &b.compute, &b.report} {
		if a.pending || a.failed > 0 {
			return false
		}
	}
	return b.registered && !b.inStep && !b.unsent && !b.again && !b.hasRuntime() && b.c.MainLoopMax < 0
}
