//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

const (
	// burstPods is how many pods are created at once; PLIMSOLL_LAB_BURST sets another number.
	burstPods = 1000
	// burstRuns: one of so many pods runs a container to its end, which takes a guest some seconds.
	burstRuns = 125
	// burstWithin bounds the whole burst. Chosen: on 2026-11-20 four pods per second were admitted and deleted on two
	// idle cores, and two per second on busy ones.
	burstWithin = 15 * time.Minute
	// burstWriters is how many goroutines create and delete pods.
	burstWriters = 8
)

// burstCPUs are the CPUs that pods request, in turn. Only the first node has three CPUs on one NUMA node.
var burstCPUs = []int{1, 2, 1, 2, 1, 3}

// burst is a series of pods on nodes that have room for a dozen of them at a time.
type burst struct {
	t     *testing.T
	c     *rig.Cluster
	ns    string
	nodes []*rig.GuestNode

	leave chan string // pods that their agents admitted

	mu       sync.Mutex
	admitted map[string]string // pod to node
	sent     map[string]bool   // pods that were deleted
	rejected []string
	berths   int
	moved    chan struct{}
}

// TestPinnedBurst creates a thousand pods with one to three exclusive CPUs and pinned memory, for two nodes with the
// policy single-numa-node that have room for a dozen at a time. So pods are bound while others end, and faster than any
// report of a node arrives. No agent may reject one.
//
// A guest needs seconds to start a container, and an agent admits a pod before it starts anything of it. So most pods
// have a volume of a ConfigMap that does not exist: their agent admits them, assigns their CPUs and memory, and waits
// for the volume. Then they are deleted, and the agent releases everything. The others run to their end.
func TestPinnedBurst(t *testing.T) {
	c := rig.Shared(t)
	b := &burst{t: t, c: c, admitted: map[string]string{}, sent: map[string]bool{}, moved: make(chan struct{}, 1)}
	pods := burstPods
	if text := os.Getenv("PLIMSOLL_LAB_BURST"); text != "" {
		var err error
		if pods, err = strconv.Atoi(text); err != nil {
			t.Fatalf("PLIMSOLL_LAB_BURST: %v", err)
		}
	}
	b.leave = make(chan string, pods)
	for _, description := range []string{"two-socket", "four-numa"} {
		b.nodes = append(b.nodes, c.Join(t, lab.Boot(t, description, lab.Options{Name: "burst-" + description}),
			rig.JoinOptions{Config: pinnedConfig("single-numa-node")}))
	}
	b.ns = c.Namespace(t)
	b.watch()
	began := time.Now()
	b.parallel(func(yield func(string) bool) {
		for i := range pods {
			if !yield(fmt.Sprintf("p%04d", i)) {
				return
			}
		}
	}, b.create)
	created := time.Since(began)
	t.Logf("%d pods created in %v", pods, created.Round(time.Millisecond))
	go b.parallel(func(yield func(string) bool) {
		for name := range b.leave {
			if !yield(name) {
				return
			}
		}
	}, b.delete)
	b.await(pods)
	took := time.Since(began)
	b.judge(pods)
	t.Logf("%d pods with CPUs and memory of their own passed through in %v, %.1f a second, %d of them with berths; none "+
		"was rejected",
		pods, took.Round(time.Second), float64(pods)/took.Seconds(), b.berths)
}

// parallel calls a function with every name, several at a time.
func (b *burst) parallel(names func(func(string) bool), do func(string) error) {
	turns := make(chan string)
	var group sync.WaitGroup
	for range burstWriters {
		group.Go(func() {
			for name := range turns {
				if err := do(name); err != nil && b.t.Context().Err() == nil {
					b.t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	names(func(name string) bool {
		select {
		case turns <- name:
			return true
		case <-b.t.Context().Done():
			return false
		}
	})
	close(turns)
	group.Wait()
}

// numberOf returns the number in a pod's name.
func numberOf(name string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(name, "p"))
	return n
}

func (b *burst) create(name string) error {
	i, grace, token := numberOf(name), int64(1), false
	own := amounts(fmt.Sprint(burstCPUs[i%len(burstCPUs)]), "16Mi")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &token,
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key:      corev1.LabelHostname,
					Operator: corev1.NodeSelectorOpIn,
					Values:   []string{b.nodes[0].Name, b.nodes[1].Name},
				}}}},
			},
		}},
		Containers: []corev1.Container{{Name: "c", Image: image.Demo, Args: []string{"sleep", "1s"},
			Resources: corev1.ResourceRequirements{Requests: own, Limits: own}}},
	}}
	if !runs(name) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "never",
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "there-is-none"},
			}}}}
	}
	_, err := b.c.API.CoreV1().Pods(b.ns).Create(b.t.Context(), pod, metav1.CreateOptions{})
	return err
}

// runs reports whether a pod runs to its end.
func runs(name string) bool { return numberOf(name)%burstRuns == 0 }

func (b *burst) delete(name string) error {
	err := b.c.API.CoreV1().Pods(b.ns).Delete(b.t.Context(), name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// watch deletes pods that were admitted, and those that run to their end when they have ended.
func (b *burst) watch() {
	factory := informers.NewSharedInformerFactoryWithOptions(b.c.API, 0, informers.WithNamespace(b.ns))
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { b.see(obj.(*corev1.Pod)) },
		UpdateFunc: func(_, obj any) { b.see(obj.(*corev1.Pod)) },
	})
	if err != nil {
		b.t.Fatal(err)
	}
	factory.Start(b.t.Context().Done())
}

func (b *burst) see(p *corev1.Pod) {
	if p.Spec.NodeName == "" || p.Status.StartTime == nil { // the agent has not reported a status yet
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	if _, known := b.admitted[p.Name]; !known {
		b.admitted[p.Name] = p.Spec.NodeName
		if p.Annotations[translate.AnnotationBerth] != "" {
			b.berths++
		}
	}
	// A container may fail to start on so slow a machine. A pod that was rejected has no container statuses.
	if p.Status.Phase == corev1.PodFailed && len(p.Status.ContainerStatuses) == 0 ||
		strings.HasPrefix(p.Status.Message, "Pod was rejected") {
		b.rejected = append(b.rejected, fmt.Sprintf("%s on %s, expected in %s: %s: %s", p.Name, p.Spec.NodeName,
			p.Annotations[translate.AnnotationBerth], p.Status.Reason, p.Status.Message))
	}
	if (ended || !runs(p.Name)) && !b.sent[p.Name] {
		b.sent[p.Name] = true
		b.leave <- p.Name
	}
	select {
	case b.moved <- struct{}{}:
	default:
	}
}

// await waits until so many pods have been admitted and deleted.
func (b *burst) await(pods int) {
	b.t.Helper()
	limit := time.NewTimer(burstWithin)
	defer limit.Stop()
	progress := time.NewTicker(30 * time.Second)
	defer progress.Stop()
	for {
		b.mu.Lock()
		admitted, sent, rejected := len(b.admitted), len(b.sent), slices.Clone(b.rejected)
		b.mu.Unlock()
		if len(rejected) > 0 {
			b.t.Fatalf("%d of %d pods were rejected: %s", len(rejected), admitted, strings.Join(rejected, "\n"))
		}
		if sent == pods {
			return
		}
		select {
		case <-b.moved:
		case <-progress.C:
			b.t.Logf("%d of %d pods admitted, %d deleted", admitted, pods, sent)
		case <-limit.C:
			b.t.Fatalf("%d of %d pods admitted, %d deleted after %v", admitted, pods, sent, burstWithin)
		}
	}
}

// judge compares what the agents counted with what the API showed.
func (b *burst) judge(pods int) {
	b.t.Helper()
	on := map[string]int{}
	for _, node := range b.admitted {
		on[node]++
	}
	b.t.Logf("on %v", on)
	asked, aligned := 0, 0
	for _, n := range b.nodes {
		counts := b.counts(n)
		if rejected := counts["kubelet_topology_manager_admission_errors_total"]; rejected != 0 {
			b.t.Errorf("%s counted %d rejections", n.Name, rejected)
		}
		if astray := counts[`kubelet_container_aligned_compute_resources_failure_count{boundary="numa_node",scope="container"}`]; astray != 0 {
			b.t.Errorf("%s counted %d containers that do not lie on one NUMA node", n.Name, astray)
		}
		asked += counts["kubelet_topology_manager_admission_requests_total"]
		aligned += counts[`kubelet_container_aligned_compute_resources_count{boundary="numa_node",scope="container"}`]
	}
	if asked < pods || aligned < pods {
		b.t.Errorf("agents decided on %d pods, and laid %d containers on one NUMA node each, want %d", asked, aligned, pods)
	}
	if b.berths != pods {
		b.t.Errorf("%d of %d pods came with berths", b.berths, pods)
	}
}

// counts reads an agent's metrics that are whole numbers.
func (b *burst) counts(n *rig.GuestNode) map[string]int {
	b.t.Helper()
	config := rest.CopyConfig(b.c.Config)
	config.Timeout = time.Minute
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		b.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, fmt.Sprintf("https://localhost:%d/metrics",
		n.Port), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	var text []byte
	rig.Eventually(b.t, time.Minute, "metrics of "+n.Name, func(context.Context) error {
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if text, err = io.ReadAll(answer.Body); err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", answer.Status, text)
		}
		return err
	})
	counts := map[string]int{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.Atoi(value); err == nil {
			counts[name] = n
		}
	}
	if len(counts) == 0 {
		b.t.Fatalf("no metrics in %d bytes: %v", len(text), slices.Sorted(maps.Keys(counts)))
	}
	return counts
}
