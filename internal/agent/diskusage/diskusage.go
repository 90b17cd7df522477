// Package diskusage knows what pods use of the node's disks: writable layers, logs and volumes, for eviction and for the
// limits of local storage.
//
// # Model
//
// A Meter reads all pods every few seconds where one has a limit of local storage, else each minute, in the background,
// and answers from its last *reading*: a decision about memory must not wait for a disk. What a reading costs is the
// stats package's business: volumes that the kernel counts (host/quota) cost microseconds and include what was deleted
// and is still open; others are walked, small ones each time, large ones once a minute and by parts, one in each
// reading, so that no volume is too large to be known and no reading takes long. Who is to decide which pod goes for a
// disk asks for a Recount first. The runtime is asked once for all writable layers; they are as old as its own count of
// them (containerd: stats_collect_period, 10 s).
//
// # What it does not do
//
// It decides nothing and removes nothing. Whether images have a disk of their own it finds by comparing devices; a
// runtime that keeps writable layers apart from images says so itself.
package diskusage

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/host/disk"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

const (
	// every is the time between two readings: the kubelet's period for limits of local storage
	// (evictionMonitoringPeriod at v1.36.3). Shorter costs calls to the runtime, longer lets pods exceed their limits
	// by more.
	every = 10 * time.Second
	// calm is the time between two where no pod has such a limit: readings then only rank pods roughly, and who is to
	// decide which one goes for a disk asks for a Recount. Chosen: as often as volumes are walked. (110 pods, read each
	// 10 s, took a third of the agent's CPU, 0.003 cores on 2026-11-22.)
	calm = time.Minute
	// readWithin bounds a reading. A runtime that takes longer leaves the last one standing.
	readWithin = 30 * time.Second
	// staleAfter is when a reading says nothing any more, and pods' use of disks is unknown rather than wrong. Chosen:
	// several readings that failed, and a walk of a minute.
	staleAfter = 3 * time.Minute
	// goneLife is how long a pod's figures are kept that is in no reading any more, because nothing of it runs: what it
	// has is removed now, and until then its end is to free that (30 s after its grace, core/eviction).
	goneLife = calm + time.Minute
)

// Options are what a Meter needs.
type Options struct {
	// Read is stats.Reader's Summary with disks; anew: whatever was counted before.
	Read     func(ctx context.Context, anew bool) (*statsapi.Summary, error)
	Limited  func() bool                     // a pod has a limit of local storage
	NodeFS   string                          // a directory on it
	ImageFS  string                          // where images are; empty: nobody knows, so on NodeFS
	Now      func() time.Time                // nil: time.Now
	SameDisk func(a, b string) (bool, error) // nil: by device
}

// Meter answers what pods use of disks. It is safe for concurrent use.
type Meter struct {
	o Options

	mu    sync.Mutex
	pods  map[types.UID]podReading
	disks eviction.Disks
	began time.Time // of the last reading
}

type podReading struct {
	*statsapi.PodStats
	at time.Time
}

// New returns a Meter that has read nothing yet.
func New(o Options) *Meter {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.SameDisk == nil {
		o.SameDisk = sameDisk
	}
	return &Meter{o: o}
}

func sameDisk(a, b string) (bool, error) {
	x, err := disk.Of(a)
	if err != nil {
		return false, err
	}
	y, err := disk.Of(b)
	return x.Device == y.Device, err
}

// Run reads until ctx ends.
func (m *Meter) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if m.due() {
			if err := m.Read(ctx); err != nil && ctx.Err() == nil {
				slog.Warn("what pods use of disks was not read", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// due reports whether it is time for a reading.
func (m *Meter) due() bool {
	m.mu.Lock()
	since := m.o.Now().Sub(m.began)
	m.mu.Unlock()
	return since >= calm-every/2 || m.o.Limited() // half a tick: ticks are not exact
}

// Recount takes a reading in which everything is counted anew, for somebody who is to decide by it.
func (m *Meter) Recount(ctx context.Context) error { return m.read(ctx, true) }

// Read takes a reading.
func (m *Meter) Read(ctx context.Context) error { return m.read(ctx, false) }

func (m *Meter) read(ctx context.Context, anew bool) error {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	began := m.o.Now()
	s, err := m.o.Read(ctx, anew)
	if err != nil {
		return fmt.Errorf("read disks: %w", err)
	}
	layout := m.layout(s)
	pods := make(map[types.UID]podReading, len(s.Pods))
	for i := range s.Pods {
		pods[types.UID(s.Pods[i].PodRef.UID)] = podReading{&s.Pods[i], began}
	}
	m.mu.Lock()
	for uid, last := range m.pods {
		if _, runs := pods[uid]; !runs && began.Sub(last.at) < goneLife {
			pods[uid] = last
		}
	}
	m.pods, m.disks, m.began = pods, layout, began
	m.mu.Unlock()
	return nil
}

// layout finds which disks there are. One that cannot be asked leaves what was known.
func (m *Meter) layout(s *statsapi.Summary) eviction.Disks {
	if m.o.ImageFS == "" {
		return eviction.OneDisk
	}
	same, err := m.o.SameDisk(m.o.NodeFS, m.o.ImageFS)
	if err != nil {
		slog.Warn("disks of images and node not compared", "err", err)
		return m.Disks()
	}
	if same {
		return eviction.OneDisk
	}
	if r := s.Node.Runtime; r != nil && r.ImageFs != r.ContainerFs && isSame(s.Node.Fs, r.ContainerFs) {
		return eviction.SplitDisk
	}
	return eviction.ImageDisk
}

// isSame reports whether two file systems have the same size: the Summary does not name them.
func isSame(a, b *statsapi.FsStats) bool {
	return a != nil && b != nil && a.CapacityBytes != nil && b.CapacityBytes != nil && *a.CapacityBytes == *b.CapacityBytes
}

// Disks says which file systems the node has.
func (m *Meter) Disks() eviction.Disks {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.disks
}

// Fill adds to p what the last reading says that pod uses of disks.
func (m *Meter) Fill(pod *corev1.Pod, p *eviction.Pod) {
	m.mu.Lock()
	last, known := m.pods[pod.UID]
	m.mu.Unlock()
	if known && m.o.Now().Sub(last.at) < staleAfter && p.Used != nil {
		translate.EvictionDisks(p, last.PodStats)
	}
}
