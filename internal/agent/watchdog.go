package agent

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/agent/watchdog"
)

// turnMax is how long one turn of a loop that the watchdog knows may take. A turn of the pods' loop waits up to 10 s
// (relist), and has two calls to the runtime of 15 s each (podview.AskMax); all else in it reads cgroups and
// directories of this machine. A turn of the Node's loop sleeps a minute at most and calls nobody. So a runtime or an
// API server that does not answer takes less than half of it. The kubelet's health check allows a relist as long.
const turnMax = 3 * time.Minute

// watchLoops tells the watchdog which loops are about to start.
func (a *Agent) watchLoops() {
	a.watchdog.Watch(
		watchdog.Loop{Name: "pods", Turned: a.pods.Turned, Works: a.pods.Relisted},
		watchdog.Loop{Name: "node", Turned: a.node.Turned, Works: func() bool { return !a.node.Turned().IsZero() }},
	)
}
