// Package diskusage measures what pods use of the node's disks (writable layers, logs and volumes), for eviction and
// for the limits of local storage.
//
// # Model
//
// A Meter reads all pods in the background: every few seconds if a pod has a limit of local storage, otherwise each
// minute. It answers from its last reading, since a decision about memory must not wait for a disk. The stats package
// determines what a reading costs. Volumes that the kernel counts (host/quota) cost microseconds, and their counts
// include files that were deleted and are still open. Other volumes are walked: small ones in each reading, large ones
// once a minute and in parts, one large volume per reading. So no volume is too large to be measured, and no reading
// takes long. Eviction asks for a Recount before it chooses a victim for a disk. The runtime is asked once for all
// writable layers; their sizes are as old as the runtime's own count (containerd: stats_collect_period, 10 s).
//
// # Limits of the package
//
// It decides nothing and removes nothing. It compares devices to find whether images have a disk of their own. A
// runtime that keeps writable layers apart from images reports so itself.
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
	// (evictionMonitoringPeriod at v1.36.3). A shorter time costs calls to the runtime; a longer one lets pods exceed
	// their limits by more.
	every = 10 * time.Second
	// calm is the time between two readings if no pod has such a limit. Readings then only rank pods roughly, and
	// eviction asks for a Recount before it chooses a victim for a disk. Chosen: as often as volumes are walked. (On
	// 2026-11-22, 110 pods read each 10 s took a third of the agent's CPU time, 0.003 cores.)
	calm = time.Minute
	// readWithin bounds a reading. If the runtime takes longer, the last reading stays.
	readWithin = 30 * time.Second
	// staleAfter is the age from which a reading is not used any more, so that pods' disk usage is unknown rather than
	// wrong. Chosen: several failed readings, and a walk of a minute.
	staleAfter = 3 * time.Minute
	// goneLife is how long the figures of a pod are kept that no reading contains any more, because nothing of it runs.
	// Its files are removed during that time, and until then its end counts as about to free them (30 s after its
	// termination grace period, core/eviction).
	goneLife = calm + time.Minute
)

// Options are what a Meter needs.
type Options struct {
	// Read is stats.Reader's Summary with disks. If anew is true, everything is counted again.
	Read     func(ctx context.Context, anew bool) (*statsapi.Summary, error)
	Limited  func() bool                     // a pod has a limit of local storage
	NodeFS   string                          // a directory on nodefs
	ImageFS  string                          // the runtime's image directory; empty: not known, so on nodefs
	Now      func() time.Time                // nil: time.Now
	SameDisk func(a, b string) (bool, error) // nil: by device
}

// Meter returns what pods use of disks. It is safe for concurrent use.
type Meter struct {
	o Options

	mu    sync.Mutex
	pods  map[types.UID]podReading
	disks eviction.Disks
	began time.Time // when the last reading began
}

type podReading struct {
	*statsapi.PodStats
	at time.Time
}

// New returns a Meter without a reading.
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

// Run takes readings until ctx ends.
func (m *Meter) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if m.due() {
			if err := m.Read(ctx); err != nil && ctx.Err() == nil {
				slog.Warn("pods' disk usage not read", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// due reports whether a reading is due.
func (m *Meter) due() bool {
	m.mu.Lock()
	since := m.o.Now().Sub(m.began)
	m.mu.Unlock()
	return since >= calm-every/2 || m.o.Limited() // half a tick less, since ticks are not exact
}

// Limited reports whether a pod has a limit of local storage.
func (m *Meter) Limited() bool { return m.o.Limited() }

// Recount takes a reading in which everything is counted again, for a decision that is about to be made by it.
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
	m.pods = pods
	m.disks = layout
	m.began = began
	m.mu.Unlock()
	return nil
}

// layout returns which disks there are. If they cannot be compared, it returns what was known.
func (m *Meter) layout(s *statsapi.Summary) eviction.Disks {
	if m.o.ImageFS == "" {
		return eviction.OneDisk
	}
	same, err := m.o.SameDisk(m.o.NodeFS, m.o.ImageFS)
	if err != nil {
		slog.Warn("cannot tell whether images are on the node's file system; what was known is used", "err", err)
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

// isSame reports whether two file systems have the same size, since the Summary does not name them.
func isSame(a, b *statsapi.FsStats) bool {
	return a != nil && b != nil && a.CapacityBytes != nil && b.CapacityBytes != nil && *a.CapacityBytes == *b.CapacityBytes
}

// Disks returns which file systems the node has.
func (m *Meter) Disks() eviction.Disks {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.disks
}

// Fill adds to p the disk usage of pod in the last reading.
func (m *Meter) Fill(pod *corev1.Pod, p *eviction.Pod) {
	m.mu.Lock()
	last, known := m.pods[pod.UID]
	m.mu.Unlock()
	if known && m.o.Now().Sub(last.at) < staleAfter && p.Used != nil {
		translate.EvictionDisks(p, last.PodStats)
	}
}
