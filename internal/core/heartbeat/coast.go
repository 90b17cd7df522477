package heartbeat

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Coast advances a node to which nothing happens, up to but not at until: every request succeeds, with its answer
// latency after it was sent, and the status does not change. It leaves the Beat in the same state as the calls of Step
// would. It exists for simulators, which play a hundred million such heartbeats at a few nanoseconds each.
//
// Coast stops before the first action that would not be answered before until. It does nothing while an attempt is in
// flight or has failed, while a changed status is unsent, and for a Beat that watches a runtime or a main loop. It
// returns when the last renewal and the last report were sent; zero: none was.
func (b *Beat) Coast(until unit.Instant, latency time.Duration) (renewed, reported unit.Instant) {
	if !b.coasts() {
		return 0, 0
	}
	renewEvery := b.c.LeaseDuration / renewFraction
	for {
		// When the answers arrive. A status is computed before a report is sent, or after it was answered.
		renewal := b.lease.due.Add(latency)
		report := b.report.due.Add(latency)
		compute := b.compute.due
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
			reported, b.compute.due = b.report.due, compute // compute may have waited for the report
			b.reportBy = report.Add(b.spread(b.c.ReportEvery))
			b.report.due = b.reportBy
		default:
			b.compute.due = compute.Add(b.spread(b.c.UpdateEvery))
		}
	}
}

// coasts reports whether Coast may advance b: registered, no attempt in flight or failed, nothing unsent, no runtime,
// no main loop.
func (b *Beat) coasts() bool {
	for _, a := range []*action{&b.lease, &b.compute, &b.report} {
		if a.pending || a.failed > 0 {
			return false
		}
	}
	return b.registered && !b.inStep && !b.unsent && !b.again && !b.hasRuntime() && b.c.MainLoopMax < 0
}
