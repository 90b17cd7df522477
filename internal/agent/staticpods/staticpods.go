// Package staticpods runs the pods of a directory of manifests (static pods), and keeps their mirror pods in the API.
//
// # Model
//
// The directory determines which static pods run. It is read when it changes, and in a periodic resync, because some
// file systems do not notify. A pod's UID depends on the path and the content of its manifest, so a manifest with
// another content is another pod: the old pod is ended, and the new one is started when the old one is gone.
//
// A mirror pod is a read-only copy of a static pod in the API, in which users see it. The API does not control the
// static pod: if the mirror is deleted, it is created again, and the static pod keeps running. There are two
// goroutines: one starts and ends pods, and never waits for the API server; the other keeps the mirrors.
//
// # Invariants
//
//   - Two pods of one name never run at once.
//   - If a manifest cannot be read or decoded, its pod stays: a half-written edit must not end a running pod.
//   - Until every manifest was read once (Synced), a pod that only the runtime has may be a static pod, and must not be
//     ended.
//
// # What it does not do
//
// It does not run containers, write statuses or admit pods: the Runner does.
package staticpods

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Runner is the agent's part that runs pods. It may be called by two goroutines.
type Runner interface {
	// Start starts a static pod, unless it is on the node already.
	Start(pod *corev1.Pod)
	// Stop ends a static pod for good, unless it is ending already.
	Stop(uid types.UID)
	// Here returns the pods of this node that are static or may be.
	Here() []Here
	// Mirrored is called with the mirror pod of a static pod.
	Mirrored(uid types.UID, mirror *corev1.Pod)
	// DeleteMirror deletes a mirror pod with a grace period of 0.
	DeleteMirror(ctx context.Context, mirror *corev1.Pod) error
	// Order compares pods that come together: the lesser one is started first.
	Order(a, b *corev1.Pod) int
	// StaticSynced is called once, when every manifest was read and its pod was started.
	StaticSynced()
}

// Here is a pod of this node that is static or may be.
type Here struct {
	UID    types.UID
	Name   string // namespace/name
	Static bool   // false: only the runtime has the pod, which may be an older version that an earlier agent started
}

// Options are what a Source needs.
type Options struct {
	Node   string
	Dir    string // empty: there are no static pods, and mirrors of others are deleted
	Client *kube.Client
	Runner Runner
	// Refused is called for each file that is not a static pod, once for each different error. Optional.
	Refused func(path string, err error)
	// Watch returns a channel that has a value when a directory has changed, until ctx ends. Optional: inotify is used.
	Watch func(ctx context.Context, dir string) (changed <-chan struct{}, err error)
}

// Source is the directory of manifests as a source of pods.
type Source struct {
	Options
	wake    chan struct{} // wakes the goroutine that starts and ends pods
	reflect chan struct{} // wakes the goroutine that keeps the mirrors

	mu          sync.Mutex             // guards everything that follows
	wanted      map[string]*corev1.Pod // the directory's pods, by namespace/name; the map is replaced, never written to
	bad         map[string]string      // the error of each refused file, by path, so that each is reported once
	mirrors     map[string]*corev1.Pod // the API's mirror pods, by namespace/name
	mirrorsRead bool                   // the watch has delivered every mirror
	whole       bool                   // every file has been read at least once; never unset
	synced      bool                   // whole, and the files' pods have been started; never unset
}

// Period is the interval of the periodic resync of the directory (upstream's default of fileCheckFrequency).
const Period = 20 * time.Second

// New prepares a source.
func New(o Options) *Source {
	if o.Watch == nil {
		o.Watch = watchDir
	}
	return &Source{
		Options: o,
		wake:    make(chan struct{}, 1),
		reflect: make(chan struct{}, 1),
		wanted:  map[string]*corev1.Pod{},
		bad:     map[string]string{},
		mirrors: map[string]*corev1.Pod{},
	}
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// Resync has the pods and mirrors reconciled. The Runner calls it when a pod is gone, since a new version of a static
// pod may have waited for that.
func (s *Source) Resync() {
	notify(s.wake)
	notify(s.reflect)
}

// notify wakes the goroutine that listens. It never waits: if the channel is full, that goroutine is being woken.
func notify(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// Synced reports whether every pod of the directory was started. Until then, a pod that no source has may be one of
// them.
func (s *Source) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced || s.Dir == ""
}

// Run runs static pods until ctx ends.
func (s *Source) Run(ctx context.Context) {
	var changes <-chan struct{}
	if s.Dir != "" {
		var err error
		if changes, err = s.Watch(ctx, s.Dir); err != nil {
			slog.Warn(
				"static pods: changes are not notified; reading every "+Period.String(), "dir", s.Dir, "err", err,
			)
		}
	}
	var mirrors sync.WaitGroup
	defer mirrors.Wait()
	mirrors.Go(func() { s.keepMirrors(ctx) })
	tick := time.NewTicker(Period)
	defer tick.Stop()
	s.read()
	for {
		s.reconcile()
		select {
		case <-ctx.Done():
			return
		case <-changes:
			drain(ctx, changes)
			s.read()
		case <-tick.C:
			s.read()
		case <-s.wake:
		}
	}
}

// reconcile starts what the directory has and ends what it no longer has.
func (s *Source) reconcile() {
	wanted := s.pods()
	s.endUnwanted(wanted)
	live := s.live(wanted)
	for _, pod := range slices.SortedFunc(maps.Values(wanted), s.Runner.Order) {
		if uid, busy := live[key(pod)]; busy && uid != pod.UID {
			continue // the previous version must be gone first
		}
		s.Runner.Start(pod)
	}
	s.mu.Lock()
	first := s.whole && !s.synced
	s.synced = s.whole
	s.mu.Unlock()
	if first {
		slog.Info("static pods read", "dir", s.Dir, "pods", len(wanted))
		s.Runner.StaticSynced()
	}
	notify(s.reflect)
}

// pods returns the directory's pods, by namespace/name.
func (s *Source) pods() map[string]*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted
}

// endUnwanted ends the static pods that the directory no longer has.
func (s *Source) endUnwanted(wanted map[string]*corev1.Pod) {
	for _, h := range s.Runner.Here() {
		if w := wanted[h.Name]; h.Static && (w == nil || w.UID != h.UID) {
			s.Runner.Stop(h.UID)
		}
	}
}

// live returns the UIDs of the pods that are on the node and are or may be static, by name. Of two pods with one name,
// it returns the one that is not wanted.
func (s *Source) live(wanted map[string]*corev1.Pod) map[string]types.UID {
	live := map[string]types.UID{}
	for _, h := range s.Runner.Here() {
		if w := wanted[h.Name]; live[h.Name] == "" || w != nil && live[h.Name] == w.UID {
			live[h.Name] = h.UID
		}
	}
	return live
}
