// Package cadvisor writes the metrics of /metrics/cadvisor: what the node's cgroups use, under the names and labels
// that cAdvisor has in the kubelet, so that existing dashboards, recording rules and alerts work.
//
// # Model
//
// A row is one cgroup: the root ("/"), the group of all pods and those of QoS classes, each pod, each sandbox, each
// container. Its labels are container, id (the cgroup's path), image, name (the CRI ID), namespace and pod; what a row
// does not have is empty, as in the kubelet: only containers and sandboxes have an image, only containers have a
// container. A scrape reads all rows, then writes one family of metrics after the other (families.go).
//
// Nothing runs between two scrapes, and nothing is kept but buffers. A scrape of many pods writes some megabytes. So it
// makes no object for a sample: a row is an array of numbers and its labels as text, and samples are written from
// there.
//
// # Invariants
//
//   - What the kernel does not count is left out. It is not reported as zero.
//   - A pod or container that ends during a scrape is left out, and is no error.
//   - What a container can make long (its processes and open files) is read up to a bound (descriptorsMax).
//
// # Where it differs from the kubelet
//
// Samples have no time of their own: they are read when they are asked for. A pod on the node's network has no network
// rows, since the counters would be the node's. The page docs/metrics.md lists the families that have no meaning here.
package cadvisor

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// Options are the sources of a Collector.
type Options struct {
	Tree   *cgroup.Tree
	Pods   func() []stats.Pod
	Groups []string // cgroups above the pods': of all pods, and of QoS classes; may be empty
	// SandboxImage returns the image of sandboxes, for their label image. Recording rules select rows with an image that
	// is not empty.
	SandboxImage func() string
	Machine      machine.Machine
	Dirs         []string // directories whose file systems are shown: the agent's, the runtime's
	Proc         string   // empty: /proc
	Now          func() time.Time
}

// Collector writes metrics. It is safe for concurrent use.
type Collector struct {
	o       Options
	scrapes sync.Pool // of *scrape
}

// New returns a Collector.
func New(o Options) *Collector {
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Collector{o: o}
	c.scrapes.New = func() any { return newScrape(o.Tree.NewCounterReader()) }
	return c
}

// Write reads the node and writes all families in Prometheus' text format (version 0.0.4). An error means that w has
// failed or ctx has ended; a cgroup that cannot be read is shown by container_scrape_error.
func (c *Collector) Write(ctx context.Context, w io.Writer) error {
	s := c.scrapes.Get().(*scrape)
	defer c.scrapes.Put(s)
	failed := s.read(ctx, &c.o)
	if ctx.Err() != nil {
		return fmt.Errorf("read usage of cgroups: %w", ctx.Err())
	}
	e := encoder{w: w, scrape: s, buffer: s.out[:0]}
	e.containers()
	e.machine(&c.o)
	e.single("container_scrape_error", "1 if the usage of the node could not be read, else 0", boolean(failed))
	e.single("machine_scrape_error", "1 if the machine could not be read, else 0", 0)
	e.flush()
	s.out = e.buffer
	return e.err
}

func boolean(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
