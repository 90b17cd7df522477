package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Startup measures how long a node takes that is new to its cluster. Its methods are called in the order in which they
// stand here, any number of times: the first counts. A Node that the API server has already is no new node, and nothing
// is measured.
type Startup struct {
	now func() time.Time

	mu         sync.Mutex // guards everything that follows
	booted     time.Time  // zero: not known
	started    time.Time
	tried      time.Time
	registered time.Time
	ready      time.Time

	untilStart, untilTry, untilRegistered, untilReady, total prometheus.Gauge
}

func newStartup(s *Set) *Startup {
	k := &Startup{
		now:     time.Now,
		started: time.Now(),
		untilStart: s.gauge("node_startup_pre_kubelet_duration_seconds",
			"Seconds from the boot of the machine to the start of the agent"),
		untilTry: s.gauge("node_startup_pre_registration_duration_seconds",
			"Seconds from the start of the agent to its first try to register the node"),
		untilRegistered: s.gauge("node_startup_registration_duration_seconds",
			"Seconds from the first try to register the node until it was registered"),
		untilReady: s.gauge("node_startup_post_registration_duration_seconds",
			"Seconds from the registration of the node until it was reported as ready"),
		total: s.gauge("node_startup_duration_seconds",
			"Seconds from the boot of the machine until the node was reported as ready"),
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err == nil {
		k.booted = k.started.Add(-time.Duration(up.Nano()))
	}
	return k
}

// Trying says that the agent tries to register the node.
func (k *Startup) Trying() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tried.IsZero() {
		k.tried = k.now()
	}
}

// Registered says that the agent has created the Node.
func (k *Startup) Registered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tried.IsZero() || !k.registered.IsZero() {
		return
	}
	k.registered = k.now()
	if !k.booted.IsZero() {
		k.untilStart.Set(k.started.Sub(k.booted).Seconds())
	}
	k.untilTry.Set(k.tried.Sub(k.started).Seconds())
	k.untilRegistered.Set(k.registered.Sub(k.tried).Seconds())
}

// Ready says that the API server has a status by which the node is ready.
func (k *Startup) Ready() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.registered.IsZero() || !k.ready.IsZero() {
		return
	}
	k.ready = k.now()
	k.untilReady.Set(k.ready.Sub(k.registered).Seconds())
	if !k.booted.IsZero() {
		k.total.Set(k.ready.Sub(k.booted).Seconds())
	}
}
