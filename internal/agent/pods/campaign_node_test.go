package pods

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/agent/hook"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imagepull"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/agent/userns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/imageaccess"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// begin starts an agent in the world as it is.
func (w *world) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	w.mu.Lock()
	number := 1
	if w.life != nil {
		number = w.life.number + 1
	}
	l := &life{w: w, number: number, cancel: cancel, gone: make(chan struct{}), done: make(chan struct{}),
		files: make(chan struct{}, 1), made: map[types.UID]bool{}}
	w.life, w.down = l, false
	clear(w.orders)
	clear(w.orderedAt)
	for uid := range w.statics {
		if !w.hasRun(uid) {
			delete(w.api.final, uid) // it was rejected: as with the kubelet, the next agent admits it anew
		}
	}
	w.say("agent %d begins", number)
	w.mu.Unlock()
	client, err := kube.NewClientForConfig(&rest.Config{Host: "http://api", Transport: door{l}, QPS: -1})
	if err != nil {
		panic(err)
	}
	runtime := fakeRuntime{l: l}
	events := &record.FakeRecorder{}
	r := newRunner(Options{
		Node: "node-1", RootDir: w.logDir, StaticDir: w.staticDir(), LogDir: filepath.Join(w.logDir, "pods"),
		HostIPs: []string{"192.0.2.1"}, Client: client,
		Runtime: &cri.Client{RuntimeServiceClient: runtime, Images: fakeImages{l: l}}, RuntimeName: "fake",
		QOSClass: func(*corev1.Pod) corev1.PodQOSClass { return corev1.PodQOSBurstable }, Recorder: events,
		Volumes: fakeVolumes{l}, Env: &env.Builder{Services: func(string) ([]*corev1.Service, error) { return nil, nil }},
		Allocatable: func() corev1.ResourceList { return nil }, Groups: fakeGroups{l}, Admission: fakeAdmission{l},
		Assignments: fakeAssignments{},
		Users:       userns.Lacking(errors.New("no user namespaces here")),
		Devices:     fakeDevices{l: l}, Hooks: hook.Runner{Runtime: runtime, Recorder: events},
		Probes: probe.New(
			ctx, probe.Options{Runtime: runtime, Recorder: events, Changed: func(uid types.UID) { l.runner.Resync(uid) }},
		),
		Images: imagepull.New(imagepull.Options{
			Runtime: fakeImages{l: l}, Recorder: events, Records: noRecords{}, AtOnce: 1,
		}),
		WorkTimeout: 2 * time.Minute, Starts: 2, Relist: 30 * time.Second, Metrics: measurements(),
		Evicted: func(uid types.UID) (Eviction, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			v, ok := w.evicted[uid]
			return v, ok
		},
	}, l, "/nowhere")
	r.stops, r.removals = make(chan struct{}, 2), make(chan struct{}, 2) // so few that a slot which is held is missed
	r.static = newStatic(r, l.watchFiles)
	l.runner = r
	go func() {
		defer close(l.done)
		_ = r.Run(ctx)
	}()
}

// noRecords are the records of pulled images of a node on which every pod may use every image.
type noRecords struct{}

func (noRecords) Question(image, _ string) imageaccess.Question {
	return imageaccess.Question{Image: image}
}
func (noRecords) Begin(string) error                                    { return nil }
func (noRecords) Failed(string)                                         {}
func (noRecords) Pulled(string, string, *imageaccess.Credentials) error { return nil }
func (noRecords) Learn(string, string, *imageaccess.Credentials) error  { return nil }

// counted are what all agents count into: to make them costs more than an agent does in a minute.
var counted = metrics.New("node-1")

// measurements returns the metrics of one agent.
func measurements() *metrics.Set {
	set := *counted
	set.Registry = prometheus.NewRegistry()
	return &set
}

// crash ends the agent: from here on nothing that it does has an effect.
func (w *world) crash() {
	w.mu.Lock()
	l := w.life
	w.say("agent %d crashes", l.number)
	close(l.gone)
	w.down = true
	w.mu.Unlock()
	l.cancel()
	<-l.done
}

// fakeVolumes keeps the volumes of pods by name only.
type fakeVolumes struct{ l *life }

func (v fakeVolumes) SetUp(ctx context.Context, pod *corev1.Pod) error {
	return v.l.call(ctx, "set up", pod.UID, func() error {
		v.l.w.volumes[pod.UID] = true
		return nil
	})
}

func (v fakeVolumes) Update(*corev1.Pod) {}

func (v fakeVolumes) VolumePath(*corev1.Pod, string) (string, error) {
	return "", errors.New("no such volume")
}

func (v fakeVolumes) BlockDevices(*corev1.Pod, *corev1.Container) ([]*runtimeapi.Device, error) {
	return nil, nil
}

func (v fakeVolumes) Mounts(*corev1.Pod, *corev1.Container, volume.ContainerFacts) ([]*runtimeapi.Mount, error) {
	return nil, nil
}

func (v fakeVolumes) Release(ctx context.Context, uid types.UID) error { return v.TearDown(ctx, uid) }

func (v fakeVolumes) TearDown(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // the bound of the volume manager's own calls
	defer cancel()
	return v.l.call(ctx, "tear down", uid, func() error {
		if alive := v.l.w.alive(uid); len(alive) > 0 {
			v.l.w.judged("%s: volumes are taken down while %v run", uid, alive)
		}
		delete(v.l.w.volumes, uid)
		return nil
	})
}

func (v fakeVolumes) Orphans(known map[types.UID]bool) (orphans []types.UID, err error) {
	v.l.w.mu.Lock()
	defer v.l.w.mu.Unlock()
	if v.l.w.fails("read directories") {
		return nil, outage
	}
	for uid := range v.l.w.volumes {
		if !known[uid] {
			orphans = append(orphans, uid)
		}
	}
	return orphans, nil
}

// fakeGroups keeps the cgroups of pods.
type fakeGroups struct{ l *life }

func (g fakeGroups) Ensure(pod *corev1.Pod) (string, error) {
	g.l.w.mu.Lock()
	defer g.l.w.mu.Unlock()
	if g.l.w.life != g.l || g.l.w.down {
		return "", outage
	}
	if g.l.w.fails("make group") {
		return "", outage
	}
	if size, _ := g.Sizes(pod); asksFor(pod) && !g.l.made[pod.UID] {
		if !g.l.w.groups[pod.UID] {
			g.l.w.kernel[string(pod.UID)] = size
		} else if err := g.l.w.write(string(pod.UID), size); err != nil {
			return "", err
		}
		g.l.made[pod.UID] = true
	}
	g.l.w.groups[pod.UID] = true
	return "/pods/" + string(pod.UID), nil
}

func (g fakeGroups) Remove(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return g.l.call(ctx, "remove group", uid, func() error {
		alive, by := g.l.w.alive(uid), g.l.w.orders[uid]
		switch {
		case len(alive) > 0 && g.l.w.liar > 0 && !by.IsZero() && time.Now().After(by): // the runtime may deny them
			for _, b := range g.l.w.containers {
				if b.uid == uid {
					g.l.w.end(b, 137)
				}
			}
		case len(alive) > 0:
			g.l.w.judged("%s: its group is removed while %v run", uid, alive)
		}
		delete(g.l.w.groups, uid)
		delete(g.l.w.kernel, string(uid))
		delete(g.l.made, uid)
		return nil
	})
}

func (g fakeGroups) Pods() (all []types.UID, err error) {
	g.l.w.mu.Lock()
	defer g.l.w.mu.Unlock()
	if g.l.w.fails("read groups") {
		return nil, outage
	}
	for uid := range g.l.w.groups {
		all = append(all, uid)
	}
	return all, nil
}

func (g fakeGroups) Container(*corev1.Pod, string) string      { return "" }
func (g fakeGroups) Killed(*corev1.Pod, string) (int64, error) { return 0, nil }

// fakeAdmission admits pods.
type fakeAdmission struct{ l *life }

func (a fakeAdmission) Wait(*corev1.Pod, time.Time) (string, time.Time) { return "", time.Time{} }

// Consult is never called: no Rejection has Asks.
func (a fakeAdmission) Consult(context.Context, *corev1.Pod) *Rejection { return nil }

// Preempt is never called: no Rejection has Preempts.
func (a fakeAdmission) Preempt(*corev1.Pod, []*corev1.Pod, []podentry.Present) (admission.Preemption, bool) {
	return admission.Preemption{}, false
}

func (a fakeAdmission) Allocate(ctx context.Context, pod *corev1.Pod) *Rejection {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := a.l.call(ctx, "give", pod.UID, func() error { return nil }); err != nil {
		return &Rejection{Reason: "UnexpectedAdmissionError", Message: err.Error()}
	}
	return nil
}

type fakeAssignments struct{}

func (fakeAssignments) Note(string) string      { return "" }
func (fakeAssignments) MustReadmit(string) bool { return false }
func (fakeAssignments) Start(string, string, *runtimeapi.LinuxContainerResources) (func(), error) {
	return func() {}, nil
}
func (fakeAssignments) Update(string, string, *runtimeapi.LinuxContainerResources) func() {
	return func() {}
}
func (fakeAssignments) Check(string, string, string) error { return nil }
func (fakeAssignments) Finish(string)                      {}
func (fakeAssignments) Release(string)                     {}

type fakeDevices struct {
	noDevices
	l *life
}

func (d fakeDevices) Configure(ctx context.Context, uid, _ string, _ *runtimeapi.ContainerConfig) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return d.l.call(ctx, "configure", types.UID(uid), func() error { return nil })
}
