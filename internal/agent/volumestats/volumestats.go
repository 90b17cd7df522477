// Package volumestats knows how full the volumes of the node's pods are that are not counted by agent/stats: volumes
// behind claims and volumes of CSI drivers.
//
// # Model
//
// A Reader is told which volumes there are (Have, Gone) and how to ask about each (Volume.Ask). It asks while somebody
// wants to know (Demand), when core/volumestats says so, and keeps the last answers. Of returns them for the Summary
// API, Collect for /metrics. The kubelet asks about each volume all the time, whether somebody wants to know or not.
//
// # Invariants
//
//   - Who demands waits for waitMax at most, and only for volumes that were not asked about lately. A driver that
//     hangs, or a server of files that is away, holds up one Summary or scrape for each of its volumes at most.
//   - A volume whose last question failed has no numbers: none that are old, and no zeros.
//   - What a driver answers is checked before it is believed. Its text about a volume's condition is bounded.
//
// It does not decide when to ask, and it does not know how: agent/volume and agent/csivolume do.
package volumestats

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	core "github.com/plimsoll-dev/plimsoll/internal/core/volumestats"
)

// messageMax bounds a driver's text about a volume's condition in an Event, in bytes (the API's limit of an Event's
// note is 1 KiB, of which the beginning takes a part).
const messageMax = 900

// waitMax bounds the wait of who demands. Chosen: a driver that answers within 2 ms has answered about a thousand
// volumes, and Prometheus gives up a scrape after 10 s. Raising it, a driver that hangs delays one scrape for longer;
// lowering it, the first scrape lacks volumes of a slow driver, and the next one has them.
const waitMax = 2 * time.Second

// Volume is a volume of a pod.
type Volume struct {
	Pod   *corev1.Pod
	Name  string // in the pod
	Claim string // the name of its claim; empty: it has none
	// Source is who answers: if one question hangs, those to the same source may.
	Source string
	// Kind names the source in kubelet_volume_metric_collection_duration_seconds: a driver's name, or StatFS.
	Kind string
	Ask  func(context.Context) (core.Usage, error)
}

// StatFS is the kind of volumes whose file system the kernel is asked about.
const StatFS = "statfs"

// Options are what a Reader needs.
type Options struct {
	Period time.Duration // the shortest time between two questions about a volume; negative: none are asked
	// Health: the conditions of volumes are shown, and told in Events. So volumes are asked about without a demand too.
	Health   bool
	Recorder record.EventRecorder
	// Measured is called when a question has ended. Optional.
	Measured func(kind string, took time.Duration)
}

// Reader has the last answers. It is safe for concurrent use.
type Reader struct {
	Options
	ctx   context.Context
	begun time.Time

	mu    sync.Mutex // guards everything that follows
	state *core.State
	pods  map[types.UID]map[string]*known
	timer *time.Timer
	// settled is closed when no volume lacks an answer for which who demands waits. nil: nobody waits.
	settled chan struct{}
}

// known is a volume with its last answer.
type known struct {
	Volume
	usage  *core.Usage // nil: there is none yet, or the last question failed
	at     time.Time   // when it came
	failed bool        // the last question failed
}

// New returns a Reader without volumes. It asks until ctx ends.
func New(ctx context.Context, o Options) *Reader {
	return &Reader{
		Options: o,
		ctx:     ctx,
		begun:   time.Now(),
		state:   core.New(o.Period, o.Health),
		pods:    map[types.UID]map[string]*known{},
	}
}

// now is the monotonic clock for the core; never 0.
func (r *Reader) now() unit.Instant { return unit.Instant(time.Second).Add(time.Since(r.begun)) }

// Have records a volume, or that it is there still.
func (r *Reader) Have(v Volume) {
	r.mu.Lock()
	defer r.mu.Unlock()
	volumes := r.pods[v.Pod.UID]
	if volumes == nil {
		volumes = map[string]*known{}
		r.pods[v.Pod.UID] = volumes
	}
	if k := volumes[v.Name]; k != nil {
		k.Volume = v
		return
	}
	volumes[v.Name] = &known{Volume: v}
	r.state.Have(r.now(), core.Key{Pod: string(v.Pod.UID), Volume: v.Name}, v.Source)
	r.step()
}

// Gone records that a pod has no volumes any more.
func (r *Reader) Gone(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.pods[uid] {
		r.state.Gone(core.Key{Pod: string(uid), Volume: name})
	}
	delete(r.pods, uid)
	r.settle()
}

// Demand says that somebody wants to know how full the volumes are. It returns when Of and Collect have answers about
// all of them that are not old, as far as sources answer soon, or when ctx ends.
func (r *Reader) Demand(ctx context.Context) {
	settled := r.demand()
	if settled == nil {
		return
	}
	patience := time.NewTimer(waitMax)
	defer patience.Stop()
	select {
	case <-settled:
	case <-ctx.Done():
	case <-r.ctx.Done():
	case <-patience.C:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.state.GiveUp()
		r.settle()
	}
}

// demand records a demand, drops old answers, and returns what to wait for; nil: nothing.
func (r *Reader) demand() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range r.state.Demand(r.now()) {
		r.pods[types.UID(key.Pod)][key.Volume].usage = nil
	}
	r.step()
	if !r.state.Lacks() {
		return nil
	}
	if r.settled == nil {
		r.settled = make(chan struct{})
	}
	return r.settled
}

// settle wakes those who wait if there is nothing to wait for. mu is locked.
func (r *Reader) settle() {
	if r.settled != nil && !r.state.Lacks() {
		close(r.settled)
		r.settled = nil
	}
}

// step asks what is to be asked. mu is locked.
func (r *Reader) step() {
	if r.ctx.Err() != nil {
		return
	}
	ask, wake := r.state.Step(r.now())
	for _, key := range ask {
		go r.ask(key, r.pods[types.UID(key.Pod)][key.Volume].Volume)
	}
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	if !wake.IsZero() {
		r.timer = time.AfterFunc(wake.Sub(r.now()), func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.step()
		})
	}
}

// ask asks about a volume, and keeps the answer.
func (r *Reader) ask(key core.Key, v Volume) {
	begun := time.Now()
	usage, err := v.Ask(r.ctx)
	if err == nil {
		err = usage.Check()
	}
	if r.Measured != nil && !errors.Is(err, core.ErrNone) {
		r.Measured(v.Kind, time.Since(begun))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.Ended(r.now(), key) {
		r.keep(r.pods[v.Pod.UID][v.Name], usage, err)
	}
	r.settle()
	r.step()
}

// keep keeps the answer about a volume, or that there is none. mu is locked.
func (r *Reader) keep(k *known, usage core.Usage, err error) {
	unknown := err != nil && !errors.Is(err, core.ErrNone)
	if unknown && !k.failed && r.ctx.Err() == nil {
		slog.Warn("usage of a volume not read; it is left out until it is", "pod", k.Pod.Namespace+"/"+k.Pod.Name,
			"volume", k.Name, "source", k.Source, "err", err)
	}
	k.failed = unknown
	k.usage = nil
	if err != nil {
		return
	}
	if !r.Health {
		usage.Health = nil
	}
	k.usage = &usage
	k.at = time.Now()
	if h := usage.Health; h != nil && h.Abnormal {
		r.Recorder.Eventf(k.Pod, corev1.EventTypeWarning, "VolumeConditionAbnormal", "Volume %s: %s", k.Name, cut(h.Message))
	}
}

func cut(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > messageMax {
		text = strings.ToValidUTF8(text[:messageMax], "") + " (cut)"
	}
	return text
}

// Of returns the last answers about a pod's volumes, in the order of their names.
func (r *Reader) Of(uid types.UID) []statsapi.VolumeStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []statsapi.VolumeStats
	for _, k := range r.pods[uid] {
		if k.usage != nil {
			out = append(out, k.stats())
		}
	}
	slices.SortFunc(out, func(a, b statsapi.VolumeStats) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// stats translates an answer. Sizes that the driver does not know are 0, as in the kubelet.
func (k *known) stats() statsapi.VolumeStats {
	number := func(n int64) *uint64 {
		out := uint64(n) // checked: not negative
		return &out
	}
	out := statsapi.VolumeStats{
		Name: k.Name,
		FsStats: statsapi.FsStats{
			Time:           metav1.NewTime(k.at),
			CapacityBytes:  number(int64(k.usage.Capacity)),
			AvailableBytes: number(int64(k.usage.Available)),
			UsedBytes:      number(int64(k.usage.Used)),
			Inodes:         number(k.usage.Inodes),
			InodesFree:     number(k.usage.InodesFree),
			InodesUsed:     number(k.usage.InodesUsed),
		},
	}
	if k.Claim != "" {
		out.PVCRef = &statsapi.PVCReference{Namespace: k.Pod.Namespace, Name: k.Claim}
	}
	if k.usage.Health != nil {
		out.VolumeHealthStats = &statsapi.VolumeHealthStats{Abnormal: k.usage.Health.Abnormal}
	}
	return out
}

var ofClaim = []string{"namespace", "persistentvolumeclaim"}

// The kubelet's series of a claim's volume.
var (
	capacity = prometheus.NewDesc(
		"kubelet_volume_stats_capacity_bytes", "Size of the claim's volume in bytes", ofClaim, nil)
	available = prometheus.NewDesc(
		"kubelet_volume_stats_available_bytes", "Available bytes of the claim's volume", ofClaim, nil)
	used = prometheus.NewDesc(
		"kubelet_volume_stats_used_bytes", "Bytes in use of the claim's volume", ofClaim, nil)
	inodes = prometheus.NewDesc(
		"kubelet_volume_stats_inodes", "Inodes of the claim's volume", ofClaim, nil)
	inodesFree = prometheus.NewDesc(
		"kubelet_volume_stats_inodes_free", "Free inodes of the claim's volume", ofClaim, nil)
	inodesUsed = prometheus.NewDesc(
		"kubelet_volume_stats_inodes_used", "Inodes in use of the claim's volume", ofClaim, nil)
	abnormal = prometheus.NewDesc(
		"kubelet_volume_stats_health_status_abnormal",
		"Whether the driver says that the volume's condition is abnormal: 1, else 0", ofClaim, nil)
)

// Describe implements prometheus.Collector.
func (r *Reader) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{capacity, available, used, inodes, inodesFree, inodesUsed, abnormal} {
		out <- d
	}
}

// Collect implements prometheus.Collector. It is a demand. Of a claim that several pods have, one answer is shown.
func (r *Reader) Collect(out chan<- prometheus.Metric) {
	r.Demand(r.ctx)
	type claim struct{ namespace, name string }
	r.mu.Lock()
	claims := map[claim]core.Usage{}
	newest := map[claim]time.Time{}
	for _, volumes := range r.pods {
		for _, k := range volumes {
			c := claim{k.Pod.Namespace, k.Claim}
			if k.Claim != "" && k.usage != nil && k.at.After(newest[c]) {
				claims[c] = *k.usage
				newest[c] = k.at
			}
		}
	}
	r.mu.Unlock()
	for c, u := range claims {
		gauge := func(d *prometheus.Desc, value int64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), c.namespace, c.name)
		}
		gauge(capacity, int64(u.Capacity))
		gauge(available, int64(u.Available))
		gauge(used, int64(u.Used))
		gauge(inodes, u.Inodes)
		gauge(inodesFree, u.InodesFree)
		gauge(inodesUsed, u.InodesUsed)
		if u.Health != nil {
			bad := int64(0)
			if u.Health.Abnormal {
				bad = 1
			}
			gauge(abnormal, bad)
		}
	}
}
