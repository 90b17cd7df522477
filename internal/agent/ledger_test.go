package agent

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// burstPods is how many pods a burst has.
const burstPods = 110

func resourcesOf(cpu unit.MilliCPU, memory unit.Bytes, podsMax int64) (r allocatable.Resources) {
	r.CPU.Allocatable = cpu
	r.Memory.Allocatable = memory
	r.Pods.Allocatable = podsMax
	return r
}

// numbered returns the i-th pod of a burst, which requests that many millicores.
func numbered(i int, milli int64) *corev1.Pod {
	pod := onePod(fmt.Sprintf("%dm", milli), "1Mi")
	pod.UID = types.UID(fmt.Sprint(i))
	pod.Name = fmt.Sprint("p", i)
	pod.Generation = 1
	pod.Status.QOSClass = corev1.PodQOSGuaranteed
	return pod
}

// running returns a copy of a pod as pods.Runner passes it once it is admitted: with the status that the agent
// computed.
func running(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Status.Phase = corev1.PodRunning
	for _, c := range pod.Spec.Containers {
		out.Status.ContainerStatuses = append(out.Status.ContainerStatuses, corev1.ContainerStatus{
			Name:               c.Name,
			AllocatedResources: c.Resources.Requests,
			Resources:          &c.Resources,
		})
	}
	return &out
}

// burst admits pods one after the other, each given the pods that are on the node by then.
func burst(l *ledger, all []*corev1.Pod) (rejected *admission.Rejection) {
	var others []*corev1.Pod
	for _, pod := range all {
		if r := l.check(pod, others, nil, nil, &admission.Basis{}); r != nil {
			return r
		}
		again := *pod.DeepCopy() // the API's next version, of another status
		next := make([]*corev1.Pod, 0, len(others)+1)
		for _, o := range others {
			next = append(next, running(o))
		}
		others = append(next, running(&again))
	}
	return nil
}

// TestBurstTranslatesEachPodOnce counts translations.
func TestBurstTranslatesEachPodOnce(t *testing.T) {
	l := newLedger(resourcesOf(burstPods*10, unit.GiB, burstPods))
	times := map[types.UID]int{}
	l.translate = func(pod *corev1.Pod) candidate {
		times[pod.UID]++
		return translateCandidate(pod)
	}
	var all []*corev1.Pod
	for i := range burstPods {
		all = append(all, numbered(i, 10))
	}
	if r := burst(l, all); r != nil {
		t.Fatal(r)
	}
	for uid, n := range times {
		if n != 1 {
			t.Errorf("pod %s was translated %d times", uid, n)
		}
	}
	if len(times) != burstPods {
		t.Errorf("%d pods were translated, want %d", len(times), burstPods)
	}
	r := l.check(numbered(200, 10), nil, nil, nil, &admission.Basis{})
	if r != nil || len(l.taken) != 0 || len(l.candidates) != 1 {
		t.Errorf("with all pods gone: %v, %d on the node, %d candidates", r, len(l.taken), len(l.candidates))
	}
}

// BenchmarkBurst admits as many pods as fit on a node, each given all those before.
func BenchmarkBurst(b *testing.B) {
	var all []*corev1.Pod
	for i := range burstPods {
		all = append(all, numbered(i, 10))
	}
	for _, name := range []string{"", "n"} { // a node without a name is judged by amounts alone
		node := &corev1.Node{}
		node.Name = name
		b.Run("name="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l := newLedger(resourcesOf(burstPods*10, unit.GiB, burstPods))
				for i, pod := range all {
					if r := l.check(pod, all[:i], node, nil, &admission.Basis{}); r != nil {
						b.Fatal(r)
					}
				}
			}
		})
	}
}

// TestLedgerAgreesWithAFreshOne plays random histories: pods come, go, are resized, and report what they have. After
// every step the ledger gives the same verdict as a new ledger, which translates everything.
func TestLedgerAgreesWithAFreshOne(t *testing.T) {
	rejected, allocated := 0, 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		resources := resourcesOf(2000, unit.GiB, 8)
		l := newLedger(resources)
		here := map[types.UID]*corev1.Pod{}
		for step := range 80 {
			pod := numbered(r.IntN(10), int64(100*(1+r.IntN(6))))
			old := here[pod.UID]
			switch {
			case old == nil:
				if l.check(pod, listed(here), nil, nil, &admission.Basis{}) == nil {
					here[pod.UID] = pod
				}
			case r.IntN(3) == 0:
				delete(here, pod.UID)
			case r.IntN(3) == 0:
				here[pod.UID] = running(old)
			case r.IntN(2) == 0: // it has more than it asks for
				pod = running(old)
				pod.Status.ContainerStatuses[0].Resources = numbered(0,
					int64(100*(1+r.IntN(9)))).Spec.Containers[0].Resources.DeepCopy()
				here[pod.UID] = pod
			default: // allocated anew
				here[pod.UID] = pod
			}
			var node *corev1.Node
			if r.IntN(3) > 0 {
				node = &corev1.Node{}
				node.Name = "n"
				node.Labels = map[string]string{"zone": "a"}
			}
			fresh := newLedger(resources)
			asks := numbered(50, int64(100*(1+r.IntN(9))))
			got := l.check(asks, listed(here), node, nil, &admission.Basis{})
			want := fresh.check(asks, listed(here), node, nil, &admission.Basis{})
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d: %+v, a fresh ledger says %+v", seed, step, got, want)
			}
			if got != nil {
				rejected++
			}
			var requests []allocation.Request
			for _, pod := range listed(here) {
				if r.IntN(3) == 0 {
					i := 0
					fmt.Sscan(string(pod.UID), &i)
					requests = append(requests, allocation.Request{Desired: numbered(i, int64(100*(1+r.IntN(6)))), Allocated: pod})
				}
			}
			ask := func(l *ledger) []admission.Verdict {
				return l.resizes(requests, make([]admission.Resize, len(requests)), listed(here), node, nil)
			}
			has, wants := ask(l), ask(fresh)
			if !reflect.DeepEqual(has, wants) {
				t.Fatalf("seed %d, step %d: %+v, a fresh ledger says %+v", seed, step, has, wants)
			}
			for _, v := range has {
				if v.Allocated {
					allocated++
				}
			}
		}
	}
	if rejected < 100 || allocated < 100 {
		t.Errorf("%d rejections and %d allocations are too few to compare", rejected, allocated)
	}
}

// listed returns the pods in order.
func listed(here map[types.UID]*corev1.Pod) (list []*corev1.Pod) {
	for i := range 10 {
		if pod := here[types.UID(fmt.Sprint(i))]; pod != nil {
			list = append(list, pod)
		}
	}
	return list
}

// TestCandidateIsReadAnew: a new version of a pod is translated again before it is judged. It may tolerate more, and
// what only its status says counts.
func TestCandidateIsReadAnew(t *testing.T) {
	l := newLedger(resourcesOf(1000, unit.GiB, 8))
	pod := numbered(1, 100)
	l.candidate(pod)
	next := pod.DeepCopy()
	next.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	if got := l.candidate(next).Pod.Tolerations; len(got) != 1 {
		t.Errorf("tolerations %v, want the new one", got)
	}
	larger := running(pod)
	larger.Status.ContainerStatuses[0].AllocatedResources = numbered(1, 700).Spec.Containers[0].Resources.Requests
	want := []scheduler.Amount{{Resource: "cpu", Value: 700}, {Resource: "memory", Value: 1 << 20}}
	l.check(numbered(2, 1), []*corev1.Pod{running(pod)}, nil, nil, &admission.Basis{})
	l.check(numbered(2, 1), []*corev1.Pod{larger}, nil, nil, &admission.Basis{})
	if got := l.taken[pod.UID].as.Requests; !reflect.DeepEqual(got, want) ||
		!reflect.DeepEqual(translate.SchedulerPod(larger).Requests, want) {
		t.Errorf("it takes %v, want %v", got, want)
	}
}
