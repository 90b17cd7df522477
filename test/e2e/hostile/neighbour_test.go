//go:build e2e

package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	ours "github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// neighbour is a well-behaved tenant: it has a pod that stays, and small ones that come and go.
type neighbour struct {
	*rig.Cluster
	t      *testing.T
	sight  *sight
	ns     string
	stays  *corev1.Pod
	number int // of the last secret
}

// figures are what the neighbour measures in one period.
type figures struct {
	mu    sync.Mutex
	times map[string][]time.Duration

	memory unit.Bytes // the agent's peak of resident memory
	cores  float64    // the agent's CPU
}

// What is measured.
const (
	starting = "start a pod" // from its creation until it is Ready, with its token and its secret read
	stopping = "stop a pod"  // from its deletion until it is gone
	// from the first start of a container that fails a second later until its kill is in its status
	killing    = "liveness kill"
	delivering = "deliver a secret" // from its update until the pod that has it can read the new one
	asking     = "answer for logs"  // from the request to its end
)

// measurements bounds the neighbour's figures under attack: the median may be so many times the worse of the two
// measured before (alone, beside the crowd), plus a constant. Measured three times on two idle CPUs, in ms, alone;
// beside the crowd; under attack. Start: 160 to 200; 1,600; 350 to 3,000, with sixty pods that have more containers
// than the crowd. Stop: 140; 770 to 1,000; 320 to 1,900. Kill: 2,000; 2,200 to 2,300; 870 to 2,000. Secret: 12 to 18;
// 14; 13 to 19. Logs: 3 to 6; 12 to 18; 9 to 240, while the API server receives pods of one mebibyte each. The constant
// is for bursts with few samples: the median of five may be measured before or after the burst's end.
var measurements = map[string]struct {
	ratio float64
	plus  time.Duration
}{
	starting:   {ratio: 3, plus: 3 * time.Second},
	stopping:   {ratio: 3, plus: 3 * time.Second},
	killing:    {ratio: 1.5, plus: time.Second},
	delivering: {ratio: 3, plus: 500 * time.Millisecond},
	asking:     {ratio: 3, plus: time.Second},
}

// crowdRatio and crowdPlus bound the neighbour's figures beside the crowd in the same way, compared with those alone.
// Measured: 9.5 times for starts, 7 times for stops.
const (
	crowdRatio = 12
	crowdPlus  = 4 * time.Second
)

// longestPlus is by how much the longest figure may exceed the longest one before (measured: 3 s). A program that gets
// SIGTERM before it handles it uses its whole termination grace period, 10 s. Before namespaces took turns to start
// their pods, a start behind a burst took 34 s.
const longestPlus = 20 * time.Second

// Bounds of what the agent uses.
const (
	// memoryPlus is by how much the agent's peak of memory may exceed the one before: dozens of the largest objects
	// that the API accepts, each held once and sometimes read or written, and 2,000 connections (measured: 3 to 42 MiB
	// more, of 48).
	memoryPlus = 52 * unit.MiB
	coresMax   = 1.0 // leaves one of two CPUs for everything else
)

// patience bounds each measured action: after that long the neighbour counts as not served.
const patience = 90 * time.Second

// moveIn creates the neighbour's pod.
func moveIn(t *testing.T, c *rig.Cluster, s *sight) *neighbour {
	t.Helper()
	n := &neighbour{Cluster: c, t: t, sight: s, ns: c.Namespace(t)}
	if _, err := c.API.CoreV1().Secrets(n.ns).Create(t.Context(), n.secret(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stays := n.small("stays", "http")
	stays.Spec.Volumes = append(stays.Spec.Volumes, corev1.Volume{Name: "d",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	stays.Spec.Containers[0].VolumeMounts = append(stays.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "d",
		MountPath: "/d"})
	stays.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		corev1.ResourceEphemeralStorage: resource.MustParse("32Mi"),
	}
	stays.Spec.Containers[0].LivenessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 10, TimeoutSeconds: 10,
		ProbeHandler: ask("/healthz")}
	var err error
	if n.stays, err = n.create(t.Context(), stays); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := rig.StartClock().Limit(t.Context(), patience)
	defer cancel()
	if _, err := s.until(ctx, n.stays, time.Now(), ready); err != nil {
		t.Fatalf("the neighbour moves in: %v", err)
	}
	return n
}

func ask(path string) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080)}}
}

const secretFile = "number"

func (n *neighbour) secret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		StringData: map[string]string{secretFile: strconv.Itoa(n.number)}}
}

// small is a pod with a token and a secret.
func (n *neighbour) small(name string, args ...string) *corev1.Pod {
	grace := int64(10)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-", Namespace: n.ns},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Volumes: []corev1.Volume{{Name: "s",
				VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}},
			Containers: []corev1.Container{{
				Name:         "c",
				Image:        ours.Demo,
				Args:         args,
				VolumeMounts: []corev1.VolumeMount{{Name: "s", MountPath: "/s"}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
				}},
			}},
		},
	}
}

func (n *neighbour) create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return n.API.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
}

// live measures until over is closed, and each figure at least so many times.
func (n *neighbour) live(over <-chan struct{}, least int) *figures {
	f := &figures{times: map[string][]time.Duration{}}
	gauge := n.gauge()
	var all sync.WaitGroup
	for what, once := range map[string]func(context.Context) error{
		starting:   func(ctx context.Context) error { return n.startAndStop(ctx, f) },
		killing:    func(ctx context.Context) error { return n.beKilled(ctx, f) },
		delivering: func(ctx context.Context) error { return n.changeSecret(ctx, f) },
		asking:     func(ctx context.Context) error { return n.askForLogs(ctx, f) },
	} {
		all.Go(func() {
			for i := 0; i < least || !closed(over); i++ {
				ctx, cancel := context.WithTimeout(n.t.Context(), patience)
				err := once(ctx)
				cancel()
				if err != nil {
					n.t.Errorf("the neighbour waits to %s: %v", what, err)
					f.add(what, patience)
					if errors.Is(err, context.Canceled) {
						return
					}
				}
			}
		})
	}
	all.Wait()
	f.memory, f.cores = gauge()
	return f
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (f *figures) add(what string, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times[what] = append(f.times[what], took)
}

func (f *figures) median(what string) time.Duration {
	times := slices.Sorted(slices.Values(f.times[what]))
	if len(times) == 0 {
		return patience
	}
	return times[len(times)/2]
}

func (f *figures) longest(what string) time.Duration { return slices.Max(append(f.times[what], 0)) }

func (n *neighbour) startAndStop(ctx context.Context, f *figures) error {
	began := time.Now()
	pod, err := n.create(ctx, n.small("small", "http"))
	if err != nil {
		return err
	}
	took, err := n.sight.until(ctx, pod, began, ready)
	if err != nil {
		return errors.Join(err, n.API.CoreV1().Pods(n.ns).Delete(n.t.Context(), pod.Name, now))
	}
	f.add(starting, took)
	if err := n.served(pod); err != nil {
		return err
	}
	began = time.Now()
	if err := n.API.CoreV1().Pods(n.ns).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if took, err = n.sight.until(ctx, pod, began, absent); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	f.add(stopping, took)
	return nil
}

// served checks that a started pod has its token and its secret.
func (n *neighbour) served(pod *corev1.Pod) error {
	for _, pattern := range []string{"kubernetes.io~projected/*/token", "kubernetes.io~secret/s/" + secretFile} {
		files, err := filepath.Glob(filepath.Join(n.AgentRoot(), "pods", string(pod.UID), "volumes", pattern))
		if err != nil || len(files) != 1 {
			return fmt.Errorf("%s of a pod that runs: %v, %v", pattern, files, err)
		}
		if text, err := os.ReadFile(files[0]); err != nil || len(text) == 0 {
			return fmt.Errorf("%s of a pod that runs: %q, %v", pattern, text, err)
		}
	}
	return nil
}

func (n *neighbour) beKilled(ctx context.Context, f *figures) error {
	pod := n.small("killed", "http", "--fail-after", "1s")
	pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 5,
		ProbeHandler: ask("/healthz")}
	pod, err := n.create(ctx, pod)
	if err != nil {
		return err
	}
	defer func() { _ = n.API.CoreV1().Pods(n.ns).Delete(n.t.Context(), pod.Name, now) }()
	if _, err := n.sight.until(ctx, pod, time.Now(), func(p *corev1.Pod) error {
		if p == nil || len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil {
			return fmt.Errorf("it does not run: %s", describe(p))
		}
		return nil
	}); err != nil {
		return err
	}
	took, err := n.sight.until(ctx, pod, time.Now(), func(p *corev1.Pod) error {
		if p == nil || len(p.Status.ContainerStatuses) == 0 ||
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated == nil &&
				p.Status.ContainerStatuses[0].State.Terminated == nil {
			return fmt.Errorf("it was not killed: %s", describe(p))
		}
		return nil
	})
	if err == nil {
		f.add(killing, took)
	}
	return err
}

// changeSecret changes the secret and waits until the pod that stays reads the new value.
func (n *neighbour) changeSecret(ctx context.Context, f *figures) error {
	n.number++
	began := time.Now()
	if _, err := n.API.CoreV1().Secrets(n.ns).Update(ctx, n.secret(), metav1.UpdateOptions{}); err != nil {
		return err
	}
	file := filepath.Join(n.AgentRoot(), "pods", string(n.stays.UID), "volumes/kubernetes.io~secret/s", secretFile)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(file)
		if err == nil && string(text) == strconv.Itoa(n.number) {
			f.add(delivering, time.Since(began))
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("secret %d: the file has %q, %v", n.number, text, err)
		}
	}
}

// askForLogs reads the log of the pod that stays.
func (n *neighbour) askForLogs(ctx context.Context, f *figures) error {
	began, lines := time.Now(), int64(1)
	text, err := n.API.CoreV1().Pods(n.ns).GetLogs(n.stays.Name, &corev1.PodLogOptions{TailLines: &lines}).DoRaw(ctx)
	if err == nil && len(text) == 0 {
		err = errors.New("no log")
	}
	if err != nil {
		return err
	}
	f.add(asking, time.Since(began))
	select {
	case <-time.After(500 * time.Millisecond):
	case <-ctx.Done():
	}
	return nil
}

// gauge begins to measure the agent's process. The returned function ends that.
func (n *neighbour) gauge() func() (unit.Bytes, float64) {
	pid := n.PID(n.t, "agent")
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil { // proc(5): reset VmHWM
		n.t.Error(err)
	}
	began, before := time.Now(), n.cpu(pid)
	return func() (unit.Bytes, float64) {
		return n.mostMemory(pid), (n.cpu(pid) - before).Seconds() / time.Since(began).Seconds()
	}
}

func (n *neighbour) mostMemory(pid int) unit.Bytes {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		n.t.Error(err)
	}
	_, rest, _ := bytes.Cut(text, []byte("VmHWM:"))
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		n.t.Errorf("no VmHWM in /proc/%d/status", pid)
		return 0
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		n.t.Error(err)
	}
	return unit.Bytes(kib) * unit.KiB
}

// userHz is the unit of times in /proc: sysconf(_SC_CLK_TCK) is 100 on every architecture that Go has for Linux.
const userHz = 100

func (n *neighbour) cpu(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		n.t.Error(err)
		return 0
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	// proc(5): utime is field 14; field 3 is the first one after the name
	user, err := strconv.ParseInt(string(fields[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(fields[12]), 10, 64)
	if err := errors.Join(err, err2); err != nil {
		n.t.Error(err)
	}
	return time.Duration(user+system) * time.Second / userHz
}

// compareCrowd compares the figures beside the crowd with those alone.
func (n *neighbour) compareCrowd() {
	for _, what := range []string{starting, stopping, killing, delivering, asking} {
		was, is := peace.alone.median(what), peace.crowded.median(what)
		if bound := crowdRatio*was + crowdPlus; is > bound {
			n.t.Errorf("%s: median %v beside a crowd, %v alone: bound %v", what, is, was, bound)
		}
	}
}

// compare compares the figures under attack with those before it.
func (n *neighbour) compare(under *figures) {
	alone, crowded := peace.alone, peace.crowded
	var table strings.Builder
	for _, what := range []string{starting, stopping, killing, delivering, asking} {
		m, is, longest := measurements[what], under.median(what), under.longest(what)
		bound := time.Duration(m.ratio*float64(max(alone.median(what), crowded.median(what)))) + m.plus
		longestBound := max(alone.longest(what), crowded.longest(what)) + longestPlus
		fmt.Fprintf(&table, "%-18s", what)
		for _, f := range []*figures{alone, crowded, under} {
			fmt.Fprintf(&table, " %6d (%d, longest %d),", f.median(what).Milliseconds(), len(f.times[what]),
				f.longest(what).Milliseconds())
		}
		fmt.Fprintf(&table, " bounds %d and %d\n", bound.Milliseconds(), longestBound.Milliseconds())
		if is > bound {
			n.t.Errorf("%s: median %v under attack, %v alone, %v beside a crowd: bound %v", what, is, alone.median(what),
				crowded.median(what), bound)
		}
		if longest > longestBound {
			n.t.Errorf("%s: at most %v under attack: bound %v", what, longest, longestBound)
		}
	}
	bound := max(alone.memory, crowded.memory) + memoryPlus
	fmt.Fprintf(&table, "agent: memory at most %v, %v, %v, bound %v; CPU %.2f, %.2f, %.2f cores, bound %.2f",
		alone.memory, crowded.memory, under.memory, bound, alone.cores, crowded.cores, under.cores, coresMax)
	n.t.Logf("the neighbour in ms, and the agent: alone, beside a crowd, under attack:\n%s", table.String())
	if under.memory > bound {
		n.t.Errorf("the agent held %v under attack, %v alone, %v beside a crowd: bound %v", under.memory, alone.memory,
			crowded.memory, bound)
	}
	if under.cores > coresMax {
		n.t.Errorf("the agent took %.2f cores under attack: bound %.2f", under.cores, coresMax)
	}
}
