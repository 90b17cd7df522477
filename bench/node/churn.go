package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// With --churn the round is another one: many pods come and go, so many at a time, each in the place of one that ended.
// What the agent holds is read at the same state each time, without pods and after a rest: before the first pod and
// after each tenth of them. The first tenth warms up. What grows from then on grows with the pods that there have been.

const (
	// churnTenths is how many parts the pods of a run are divided into.
	churnTenths = 10
	// churnLife is how long a pod that does not end by itself runs. Chosen: long enough for its statuses to settle.
	churnLife = 2 * time.Second
	// churnGrace is the grace period of pods, in seconds. It bounds the end of containers that are started again at the
	// moment when their pod is deleted: the first process of a pid namespace ignores SIGTERM until it has a handler.
	churnGrace = 5
	// restReadings is how many readings of resident memory, a second apart, have their median taken.
	restReadings = 5
	// barChurn is from the issue "many nodes, long runs": after a day of churn, memory has grown by at most 5 %.
	barChurn = 5. // %
)

// fate is what becomes of a pod.
type fate struct {
	name   string
	shape  func(*corev1.Pod)
	done   func(*life) bool // then the pod is deleted
	linger time.Duration    // and so long after that
}

// fates are taken in turn: of ten pods, five are as those of Deployments, two as those of Jobs that succeed and one as
// that of a Job that fails; two have a container that is started again.
var fates = []fate{
	{"stays", func(*corev1.Pod) {}, isRunning, churnLife},
	{"ends", endsWith(0), hasEnded, 0},
	{"stays", withVolumes, isRunning, churnLife},
	{"crashes", crashes, isRestarted, 0},
	{"stays", withInit, isRunning, churnLife},
	{"fails", endsWith(3), hasEnded, 0},
	{"stays", withReadiness, isRunning, churnLife},
	{"ends", func(p *corev1.Pod) { endsWith(0)(p); withVolumes(p) }, hasEnded, 0},
	{"stays", withVolumes, isRunning, churnLife},
	{"probed", failsProbe, isRestarted, 0},
}

func isRestarted(l *life) bool { return l.restarts > 0 }
func hasEnded(l *life) bool    { return !l.ended.IsZero() }

// endsWith has the pod's only container end by itself, as that of a Job.
func endsWith(code int) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.Containers[0].Args = []string{"exit", "--after", "1s", "--code", strconv.Itoa(code)}
	}
}

// crashes has the container end with an error, and be started again.
func crashes(pod *corev1.Pod) {
	pod.Spec.Containers[0].Args = []string{"exit", "--after", "500ms", "--code", "1"}
}

// churnPort is where containers with probes serve HTTP.
const churnPort = 8080

// failsProbe has the container fail its liveness probe after a second, and be started again.
func failsProbe(pod *corev1.Pod) {
	c := &pod.Spec.Containers[0]
	c.Args = []string{"http", "--port", strconv.Itoa(churnPort), "--fail-after", "1s"}
	c.LivenessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(churnPort)},
		},
		PeriodSeconds:    1,
		FailureThreshold: 1,
	}
}

func withReadiness(pod *corev1.Pod) { probe(&pod.Spec.Containers[0]) }

func withInit(pod *corev1.Pod) {
	first := *pod.Spec.Containers[0].DeepCopy()
	first.Name, first.Args = "first", []string{"exit"}
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, first)
}

// withVolumes gives the pod a configmap of its own name, an emptyDir on disk and one in memory.
func withVolumes(pod *corev1.Pod) {
	settings := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: pod.Name}}
	inMemory := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
	for name, source := range map[string]corev1.VolumeSource{
		"settings": {ConfigMap: settings},
		"scratch":  {EmptyDir: &corev1.EmptyDirVolumeSource{}},
		"memory":   {EmptyDir: inMemory},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
}

// churned returns the i-th pod of a run, its configmap if it mounts one, and what becomes of it.
func churned(i int) (*corev1.Pod, *corev1.ConfigMap, fate) {
	f := fates[i%len(fates)]
	pod := podNamed(fmt.Sprintf("churn-%s-%05d", f.name, i))
	grace := int64(churnGrace)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	f.shape(pod)
	for _, v := range pod.Spec.Volumes {
		if v.ConfigMap != nil {
			return pod, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: v.ConfigMap.Name, Namespace: namespace},
				Data:       map[string]string{"settings": strings.Repeat("key = value\n", 100)},
			}, f
		}
	}
	return pod, nil, f
}

// measureChurn measures a round of churn between up and down.
func (r *rig) measureChurn(ctx context.Context, m *record.Measurement) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.prepareNamespace(ctx); err != nil {
		return err
	}
	t, err := track(ctx, r)
	if err != nil {
		return err
	}
	if err := r.readRest(ctx, m, 0); err != nil {
		return fmt.Errorf("before the first pod: %w", err)
	}
	for tenth := range churnTenths {
		from, to := tenth*r.churn/churnTenths, (tenth+1)*r.churn/churnTenths
		if err := r.churnTenth(ctx, m, t, tenth+1, from, to); err != nil {
			return fmt.Errorf("pods %d to %d: %w", from, to-1, err)
		}
		if err := r.readRest(ctx, m, tenth+1); err != nil {
			return fmt.Errorf("after %d pods: %w", to, err)
		}
		putChurn(m, tenth+1)
		if err := r.save(); err != nil {
			return err
		}
	}
	t.mu.Lock()
	m.Put("resumed", float64(t.resumed), 1)
	t.mu.Unlock()
	return nil
}

// churnTenth makes the pods from..to-1 and returns when the last of them is gone.
func (r *rig) churnTenth(ctx context.Context, m *record.Measurement, t *tracker, tenth, from, to int) error {
	before, err := r.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	var indices []int
	for i := from; i < to; i++ {
		indices = append(indices, i)
	}
	if err := each(r.churnAtOnce, indices, func(i int) error { return r.churnPod(ctx, t, i) }); err != nil {
		return errors.Join(err, r.checkSameAgent(ctx))
	}
	wall := time.Since(began).Seconds()
	after, err := r.cpu()
	if err != nil {
		return err
	}
	used, pods := after.since(before), float64(to-from)
	const ms = 1000 // in a second
	m.Put(sized("cpupod_agent", tenth), used[roleAgent]/pods*ms, to-from)
	m.Put(sized("cpupod_runtime", tenth), (used[roleContainerd]+used[roleShims])/pods*ms, to-from)
	m.Put(sized("rate", tenth), pods/wall, to-from)
	m.Put(sized("cores_others", tenth), used[roleOthers]/wall, 1)
	t.forget() // 10,000 lives would make this program slow
	return r.checkSameAgent(ctx)
}

// churnPod makes a pod, awaits what becomes of it, deletes it, and returns when it is gone.
func (r *rig) churnPod(ctx context.Context, t *tracker, i int) error {
	pod, settings, f := churned(i)
	api := r.client.CoreV1()
	if settings != nil {
		if _, err := api.ConfigMaps(namespace).Create(ctx, settings, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if _, err := api.Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	names := []string{pod.Name}
	if err := t.await(ctx, f.name+", to do so", names, f.done); err != nil {
		return fmt.Errorf("%s: %w", pod.Name, err)
	}
	if err := record.Pause(ctx, f.linger); err != nil {
		return err
	}
	if err := api.Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := t.await(ctx, "gone", names, isGone); err != nil {
		return fmt.Errorf("%s: %w", pod.Name, err)
	}
	if settings != nil {
		return api.ConfigMaps(namespace).Delete(ctx, settings.Name, metav1.DeleteOptions{})
	}
	return nil
}

// readRest reads what the agent and containerd hold when there have been no pods for a while. Resident memory comes
// first, because the other readings are requests to the agent, which cost it memory.
func (r *rig) readRest(ctx context.Context, m *record.Measurement, tenth int) error {
	if err := record.Pause(ctx, r.settle); err != nil {
		return err
	}
	agent := r.pids[roleAgent]
	readings := map[string][]float64{}
	for range restReadings {
		if err := record.Pause(ctx, samplePeriod); err != nil {
			return err
		}
		for name, of := range map[string]struct {
			pid int
			key string
		}{
			"rss":           {agent, "VmRSS"},
			"rssanon":       {agent, "RssAnon"},
			"rssfile":       {agent, "RssFile"},
			"rsscontainerd": {r.pids[roleContainerd], "VmRSS"},
		} {
			mib, err := record.StatusMiB(of.pid, of.key)
			if err != nil {
				return errors.Join(err, r.checkSameAgent(ctx))
			}
			readings[name] = append(readings[name], mib)
		}
	}
	for name, values := range readings {
		m.Put(sized(name, tenth), stats.Median(values), len(values))
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", agent))
	if err != nil {
		return err
	}
	m.Put(sized("files", tenth), float64(len(files)), 1)
	shims, err := r.shims()
	if err != nil {
		return err
	}
	m.Put(sized("shims", tenth), float64(len(shims)), 1)
	if err := r.readHeap(ctx, m, tenth); err != nil {
		return err
	}
	record.Progress("%s: after tenth %d: %.1f MiB (anonymous %.1f, live heap %.2f), %v goroutines, %v files, %v shims; "+
		"containerd %.1f MiB; %.2f pods a second, agent %.2f ms of CPU a pod", r.side.name, tenth,
		m.Values[sized("rss", tenth)], m.Values[sized("rssanon", tenth)], m.Values[sized("heap", tenth)],
		m.Values[sized("goroutines", tenth)], m.Values[sized("files", tenth)], m.Values[sized("shims", tenth)],
		m.Values[sized("rsscontainerd", tenth)], m.Values[sized("rate", tenth)], m.Values[sized("cpupod_agent", tenth)])
	return r.checkSameAgent(ctx)
}

// readHeap reads the agent's goroutines and, after a garbage collection that it asks for, its live heap. With --profile
// it keeps both profiles below --dir, for `go tool pprof -diff_base`.
func (r *rig) readHeap(ctx context.Context, m *record.Measurement, tenth int) error {
	goroutines, err := r.readAgent(ctx, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return err
	}
	n, err := valueAfter(string(goroutines), "goroutine profile: total ")
	if err != nil {
		return fmt.Errorf("read goroutines: %w", err)
	}
	heap, err := r.readAgent(ctx, "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return err
	}
	live, err := valueAfter(string(heap), "# HeapAlloc = ")
	if err != nil {
		return fmt.Errorf("read the heap: %w", err)
	}
	const mib = 1 << 20
	m.Put(sized("goroutines", tenth), n, 1)
	m.Put(sized("heap", tenth), live/mib, 1)
	if !r.profile {
		return nil
	}
	binary, err := r.readAgent(ctx, "/debug/pprof/heap")
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"heap": binary, "goroutines": goroutines} {
		file := filepath.Join(r.config.dir, fmt.Sprintf("%s-%s-%02d", r.side.name, name, tenth))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// valueAfter returns the number that follows words in a text.
func valueAfter(text, words string) (float64, error) {
	_, tail, found := strings.Cut(text, words)
	if !found {
		return 0, fmt.Errorf("no %q", words)
	}
	digits, _, _ := strings.Cut(tail, "\n")
	return strconv.ParseFloat(strings.TrimSpace(digits), 64)
}

// churnReadings are the values of each rest, with their titles. Those that are judged come first.
var churnReadings = []struct{ name, title, unit string }{
	{"rss", "agent, resident memory", "MiB"},
	{"rssanon", "agent, anonymous memory", "MiB"},
	{"heap", "agent, live heap", "MiB"},
	{"rssfile", "agent, resident memory of program and libraries", "MiB"},
	{"goroutines", "agent, goroutines", ""},
	{"files", "agent, open files", ""},
	{"rsscontainerd", "containerd, resident memory", "MiB"},
	{"shims", "containerd's shims that are left", ""},
}

// churnRates are the values of each tenth.
var churnRates = []struct{ name, title, unit string }{
	{"rate", "pods created and gone", "1/s"},
	{"cpupod_agent", "agent, CPU per pod", "ms"},
	{"cpupod_runtime", "containerd and shims, CPU per pod", "ms"},
	{"cores_others", "others on this machine, CPU", "cores"},
}

// putChurn stores, after each tenth but the first, by how many per cent each reading lies above that after the first
// tenth: the last one, and the highest so far.
func putChurn(m *record.Measurement, tenth int) {
	if tenth < 2 {
		return
	}
	for _, reading := range churnReadings {
		base := m.Values[sized(reading.name, 1)]
		if base == 0 {
			continue
		}
		above := func(k int) float64 { return 100 * (m.Values[sized(reading.name, k)]/base - 1) }
		highest := above(2)
		for k := 3; k <= tenth; k++ {
			highest = max(highest, above(k))
		}
		m.Put("worst_"+reading.name, highest, tenth-1)
		if tenth == churnTenths {
			m.Put("churn_"+reading.name, above(tenth), 1)
		}
	}
}

// churnLines returns the lines of a report about churn.
func churnLines(c config) (out []record.Line) {
	add := func(group, name, title, unit string, b record.Bar) {
		out = append(out, record.Line{Name: name, Title: title, Unit: unit, Bar: b, Group: group})
	}
	after := func(tenth int) int { return tenth * c.churn / churnTenths }
	group := fmt.Sprintf("Growth from %d pods to %d, at rest", after(1), c.churn)
	for _, r := range churnReadings {
		if r.name == "shims" {
			continue // there should be none, at any time
		}
		b := record.Bar{}
		if r.name == "rss" {
			b.Max = barChurn
		}
		add(group, "churn_"+r.name, r.title, "%", b)
		worst := fmt.Sprintf("- the highest of all readings after %d pods", after(1))
		add(group, "worst_"+r.name, worst, "%", record.Bar{})
	}
	for _, r := range churnReadings {
		group := strings.ToUpper(r.title[:1]) + r.title[1:] + ", at rest"
		for tenth := range churnTenths + 1 {
			title := "before the first pod"
			if tenth > 0 {
				title = fmt.Sprintf("after %d pods", after(tenth))
			}
			add(group, sized(r.name, tenth), title, r.unit, record.Bar{})
		}
	}
	for _, r := range churnRates {
		group := strings.ToUpper(r.title[:1]) + r.title[1:]
		for tenth := 1; tenth <= churnTenths; tenth++ {
			title := fmt.Sprintf("pods %d to %d", after(tenth-1)+1, after(tenth))
			add(group, sized(r.name, tenth), title, r.unit, record.Bar{})
		}
	}
	return out
}

// churnConditions is the line of the report that says how it was measured.
func churnConditions(c config) string {
	const text = "%d pods, %d at a time, each in the place of one that is gone; of ten, five run for %s and are " +
		"deleted, two succeed by themselves, one fails, one crashes and one fails its liveness probe until it is started " +
		"again; three mount a configmap of their own and two emptyDirs, one has a readiness probe, one an init " +
		"container; readings without pods after %s of rest"
	return fmt.Sprintf(text, c.churn, c.churnAtOnce, churnLife, c.settle)
}
