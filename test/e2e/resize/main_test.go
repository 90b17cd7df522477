//go:build e2e

// Package resize changes the CPU and memory of running pods on a real node, gives pods exclusive CPUs, and reads the
// resulting values from the kernel. Its tests fill the node, so they have a separate instance. It needs root and cgroup
// v1.
//
//	make build && go test -tags e2e ./test/e2e/resize
package resize

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	ours "github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// nodeConfig assigns exclusive CPUs to pods, which makes resizes of Guaranteed pods' CPUs infeasible.
const nodeConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
systemReserved: {cpu: 100m}
`

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "resize-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	config := filepath.Join(dir, "kubelet.yaml")
	if err := os.WriteFile(config, []byte(nodeConfig), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return 1
	}
	return rig.Main(m, "resize", rig.Options{UpFlags: []string{"--agent-config", config}})
}

// soon bounds what takes a second on an idle machine.
const soon = time.Minute

// bench is what one test works with.
type bench struct {
	*rig.Cluster
	t  *testing.T
	ns string
}

// deaths counts the agents that tests have killed since the supervisor was replaced.
var deaths int

// at is for tests that kill agents or fill the node: no other test runs meanwhile.
func at(t *testing.T) bench {
	b := bench{Cluster: rig.Shared(t), t: t}
	if deaths > 1 {
		b.Forgive(t)
		deaths = 0
	}
	return b.at()
}

// amid is for tests that run in parallel, after all that run alone.
func amid(t *testing.T) bench {
	t.Parallel()
	return bench{Cluster: rig.Shared(t), t: t}.at()
}

func (b bench) at() bench {
	b.t.Helper()
	if _, err := os.Stat("/sys/fs/cgroup/cpu/cpu.shares"); err != nil {
		b.t.Skip("reads cgroup v1 files, and this machine has none")
	}
	b.ns = b.Namespace(b.t)
	return b
}

// container does what args say, with requests and limits written as cpu,memory; empty: none.
func container(name, requests, limits string, args ...string) corev1.Container {
	return corev1.Container{Name: name, Image: ours.Demo, Args: args,
		Resources: corev1.ResourceRequirements{Requests: amounts(requests), Limits: amounts(limits)}}
}

func amounts(text string) corev1.ResourceList {
	list := corev1.ResourceList{}
	cpu, memory, _ := strings.Cut(text, ",")
	if cpu != "" {
		list[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		list[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	if len(list) == 0 {
		return nil
	}
	return list
}

// create starts a pod and waits until it is ready.
func (b bench) create(name string, containers ...corev1.Container) *corev1.Pod {
	b.t.Helper()
	return b.post(name, corev1.PodSpec{Containers: containers})
}

func (b bench) post(name string, spec corev1.PodSpec) *corev1.Pod {
	b.t.Helper()
	grace := int64(1)
	spec.TerminationGracePeriodSeconds = &grace
	if _, err := b.API.CoreV1().Pods(b.ns).Create(b.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: spec}, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	return b.until(name, "Ready", func(p *corev1.Pod) error {
		if c := condition(p, corev1.PodReady); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("phase %s, %+v", p.Status.Phase, c)
		}
		return nil
	})
}

// patch requests other resources by kubectl, and returns kubectl's error.
func (b bench) patch(pod, container, requests, limits string) error {
	b.t.Helper()
	list := func(text string) string {
		cpu, memory, _ := strings.Cut(text, ",")
		var parts []string
		if cpu != "" {
			parts = append(parts, fmt.Sprintf("%q:%q", "cpu", cpu))
		}
		if memory != "" {
			parts = append(parts, fmt.Sprintf("%q:%q", "memory", memory))
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	where := "containers"
	if strings.HasPrefix(container, "side") || container == "init" {
		where = "initContainers"
	}
	body := fmt.Sprintf(`{"spec":{%q:[{"name":%q,"resources":{"requests":%s,"limits":%s}}]}}`, where, container,
		list(requests), list(limits))
	if container == "" { // the pod as a whole
		body = fmt.Sprintf(`{"spec":{"resources":{"requests":%s,"limits":%s}}}`, list(requests), list(limits))
	}
	_, err := b.TryKubectl(b.t, "--namespace", b.ns, "patch", "pod", pod, "--subresource", "resize", "--patch", body)
	return err
}

func (b bench) resize(pod, container, requests, limits string) {
	b.t.Helper()
	if err := b.patch(pod, container, requests, limits); err != nil {
		b.t.Fatal(err)
	}
}

func (b bench) until(name, what string, look func(*corev1.Pod) error) *corev1.Pod {
	b.t.Helper()
	var pod *corev1.Pod
	rig.Eventually(b.t, soon, "pod "+name+": "+what, func(ctx context.Context) (err error) {
		if pod, err = b.API.CoreV1().Pods(b.ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return look(pod)
	})
	return pod
}

// resized waits until a container runs with the resources and no resize is pending or in progress.
func (b bench) resized(pod, container, requests, limits string) *corev1.Pod {
	b.t.Helper()
	return b.until(pod, "resized", func(p *corev1.Pod) error {
		s := statusOf(p, container)
		if s.Resources == nil || !same(s.Resources.Requests, amounts(requests)) ||
			!same(s.Resources.Limits, amounts(limits)) || !same(s.AllocatedResources, amounts(requests)) {
			return fmt.Errorf("resources %+v, allocated %v, conditions %+v", s.Resources, s.AllocatedResources,
				p.Status.Conditions)
		}
		if s.State.Running == nil { // between stop and start, the status shows the new resources already
			return fmt.Errorf("%+v", s.State)
		}
		for _, kind := range []corev1.PodConditionType{corev1.PodResizePending, corev1.PodResizeInProgress} {
			if c := condition(p, kind); c != nil {
				return fmt.Errorf("%+v", c)
			}
		}
		return nil
	})
}

func same(a, b corev1.ResourceList) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		x, y := a[name], b[name]
		if x.Cmp(y) != 0 {
			return false
		}
	}
	return true
}

// pending waits until the pod's status says that its resize is pending, and why.
func (b bench) pending(pod, reason string, texts ...string) *corev1.Pod {
	b.t.Helper()
	return b.until(pod, "its resize is "+reason, func(p *corev1.Pod) error {
		c := condition(p, corev1.PodResizePending)
		if c == nil || c.Reason != reason || c.ObservedGeneration != p.Generation {
			return fmt.Errorf("generation %d, condition %+v", p.Generation, c)
		}
		for _, text := range texts {
			if !strings.Contains(c.Message, text) {
				return fmt.Errorf("message %q lacks %q", c.Message, text)
			}
		}
		return nil
	})
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

func statusOf(p *corev1.Pod, name string) corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for _, s := range list {
			if s.Name == name {
				return s
			}
		}
	}
	return corev1.ContainerStatus{}
}

// event waits for an event of a pod with that reason and text.
func (b bench) event(pod, reason, text string) {
	b.t.Helper()
	rig.Eventually(b.t, soon, fmt.Sprintf("event %s of %s", reason, pod), func(ctx context.Context) error {
		events, err := b.API.CoreV1().Events(b.ns).List(ctx,
			metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.name": pod, "reason": reason}.String()})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, text) {
				return nil
			}
			err = fmt.Errorf("%q", e.Message)
		}
		if err == nil {
			err = fmt.Errorf("none")
		}
		return err
	})
}

// kernel checks the values in files of the pod's cgroup, or of a container's.
func (b bench) kernel(p *corev1.Pod, container string, want map[string]int64) {
	b.t.Helper()
	tier := map[corev1.PodQOSClass]string{corev1.PodQOSBurstable: "burstable",
		corev1.PodQOSBestEffort: "besteffort"}[p.Status.QOSClass]
	group := filepath.Join(b.CgroupRoot(), "kubepods", tier, "pod"+string(p.UID))
	if container != "" {
		_, id, _ := strings.Cut(statusOf(p, container).ContainerID, "://")
		group = filepath.Join(group, id)
	}
	for file, value := range want {
		controller, _, _ := strings.Cut(file, ".")
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, group, file))
		if err != nil {
			b.t.Error(err)
		} else if got := strings.TrimSpace(string(text)); got != strconv.FormatInt(value, 10) {
			b.t.Errorf("%s of %s/%s is %s, want %d", file, p.Name, container, got, value)
		}
	}
}

// size is the kernel's settings for a container with these millicores and MiB.
func size(request, limit, memory int64) map[string]int64 {
	return map[string]int64{"cpu.shares": request * 1024 / 1000, "cpu.cfs_quota_us": limit * 100,
		"memory.limit_in_bytes": memory << 20}
}

// first is a container's id and first process, which must not change.
func (b bench) first(p *corev1.Pod, container string) string {
	b.t.Helper()
	_, id, _ := strings.Cut(statusOf(p, container).ContainerID, "://")
	files, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/pids", b.CgroupRoot(), "kubepods/*/*", id, "cgroup.procs"))
	if more, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/pids", b.CgroupRoot(), "kubepods/pod*", id,
		"cgroup.procs")); err == nil {
		files = append(files, more...)
	}
	if len(files) != 1 {
		b.t.Fatalf("groups of container %s: %v, %v", id, files, err)
	}
	pids, err := os.ReadFile(files[0])
	if err != nil {
		b.t.Fatal(err)
	}
	return id + " " + strings.Fields(string(pids))[0]
}

func (b bench) delete(name string) {
	b.t.Helper()
	now := int64(0)
	if err := b.API.CoreV1().Pods(b.ns).Delete(b.t.Context(), name,
		metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		b.t.Fatal(err)
	}
}
