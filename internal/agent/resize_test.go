package agent

import (
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// onePod returns a pod with one container that has these limits.
func onePod(cpu, memory string) *corev1.Pod {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory)}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u1", Name: "p", Namespace: "ns"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Limits: list, Requests: list}}}},
	}
}

// The values that a resize writes into this machine's cgroups are read back, and are the desired ones.
func TestGroupsAreResized(t *testing.T) {
	tree, root := liveGroup(t)
	layout, err := qos.NewLayout(qos.Cgroupfs, root)
	if err != nil {
		t.Fatal(err)
	}
	g := &groups{tree: tree, layout: layout, assignments: nobodysAssignments(t, tree), policy: qos.DefaultPolicy(),
		holders: func() []*corev1.Pod { return nil }, created: map[types.UID]string{}, written: map[string]qos.Values{}}
	g.limits = newLimits(tree, func(limitState) {})
	small, large := onePod("100m", "32Mi"), onePod("300m", "64Mi")
	parent, err := g.Ensure(small)
	if err != nil {
		t.Fatal(err)
	}
	const id = "0123abcd"
	// a name that a runtime might give it
	if err := tree.Apply(parent+"/cri-containerd-"+id+".scope", qos.Values{}); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []*corev1.Pod{small, large, small} {
		want, of := g.Sizes(pod)
		has, err := g.Has(pod, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range resize.Plan(resize.Group{Has: has.Or(want), Want: want}, nil) {
			if step.Lowers {
				if used, err := g.MemoryInUse(pod, ""); err != nil || step.WhyNot(used) != "" {
					t.Errorf("memory in use: %v, %v", used, err)
				}
			}
			if err := g.Resize(pod, step); err != nil {
				t.Fatal(err)
			}
		}
		if has, err = g.Has(pod, ""); err != nil || has.Or(want) != want {
			t.Errorf("the group has %s, want %s; %v", has, want, err)
		}
		if size := of(&pod.Spec.Containers[0]); size.Memory != want.Memory || size.Quota != want.Quota {
			t.Errorf("its only container is to have %s, the pod %s", size, want)
		}
	}
	if _, err := g.Has(small, id); err != nil {
		t.Error(err)
	}
	if n, err := g.Killed(small, id); err != nil || n != 0 {
		t.Errorf("%d processes killed, %v", n, err)
	}
	if _, err := g.Has(small, "ffff"); err == nil {
		t.Error("a container that is not there has a size")
	}
}

// The request to the runtime for one step of a resize contains only values that are known to be in effect already.
func TestUpdateOfContainer(t *testing.T) {
	tree, _ := liveGroup(t)
	g := &groups{tree: tree, assignments: nobodysAssignments(t, tree), policy: qos.DefaultPolicy()}
	pod := onePod("300m", "64Mi")
	c := &pod.Spec.Containers[0]
	_, of := g.Sizes(pod)
	has, _ := g.Sizes(onePod("100m", "32Mi"))
	for _, step := range resize.Plan(resize.Group{}, []resize.Group{{Name: "c", Has: has, Want: of(c)}}) {
		u := g.Update(pod, c, step, resize.Size{})
		cpu := u.CpuShares == 307 && u.CpuQuota == 30000 && u.CpuPeriod == 100000
		memory := u.MemoryLimitInBytes == 64<<20
		if none := u.CpuShares == 0 && u.CpuQuota == 0 && u.CpuPeriod == 0; step.Resource == resize.Memory &&
			!(none && memory) || step.Resource == resize.CPU && !(cpu && u.MemoryLimitInBytes == 0) {
			t.Errorf("%s: %+v", step, u)
		}
		u = g.Update(pod, c, step, has)
		cpu = cpu || step.Resource == resize.Memory && u.CpuShares == 102 && u.CpuQuota == 10000 && u.CpuPeriod == 100000
		limit, _ := has.Memory.Get()
		memory = memory || step.Resource == resize.CPU && u.MemoryLimitInBytes == int64(limit)
		if !cpu || !memory {
			t.Errorf("%s, the rest known: %+v", step, u)
		}
		has = step.After(has)
	}
	if u := g.Update(pod, c, resize.Step{Resource: resize.CPU, Request: true, Limit: true,
		To: resize.SizeOf(qos.Values{})}, resize.Size{}); u.CpuQuota != -1 {
		t.Errorf("no limit any more: %+v", u)
	}
}

// TestAdmitResize: the node's verdict on a resize depends on what fits, and on settings that forbid it.
func TestAdmitResize(t *testing.T) {
	var resources allocatable.Resources
	resources.CPU.Allocatable = unit.CPU
	resources.Memory.Allocatable = unit.GiB
	resources.Pods.Allocatable = 10
	small := onePod("100m", "32Mi")
	large := onePod("300m", "64Mi")
	huge := onePod("2", "64Mi")
	other := onePod("500m", "1Mi")
	other.UID = "u2"
	for name, c := range map[string]struct {
		admit   admit
		desired *corev1.Pod
		reason  string
	}{
		"room":             {admit{}, large, ""},
		"no room":          {admit{}, huge, "Deferred"},
		"exclusive CPUs":   {admit{staticCPUs: true}, large, "Infeasible"},
		"exclusive memory": {admit{staticMemory: true}, large, "Infeasible"},
		"swap":             {admit{swaps: func(*corev1.Pod, *corev1.Container) bool { return true }}, large, "Infeasible"},
	} {
		c.admit.ledger = newLedger(resources)
		c.admit.node = func() *corev1.Node { return nil }
		c.admit.elsewhere = func() []string { return nil }
		if c.admit.swaps == nil {
			c.admit.swaps = func(*corev1.Pod, *corev1.Container) bool { return false }
		}
		v := c.admit.Resize([]allocation.Request{{Desired: c.desired, Allocated: small}}, []*corev1.Pod{small, other})
		if len(v) != 1 || v[0].Reason != c.reason || v[0].Allocated != (c.reason == "") {
			t.Errorf("%s: %+v", name, v)
		}
	}
	restarts := onePod("100m", "64Mi")
	restarts.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory,
		RestartPolicy: corev1.RestartContainer}}
	a := admit{
		ledger:    newLedger(resources),
		node:      func() *corev1.Node { return nil },
		elsewhere: func() []string { return nil },
		swaps:     func(*corev1.Pod, *corev1.Container) bool { return true },
	}
	if v := a.Resize([]allocation.Request{{Desired: restarts, Allocated: small}}, []*corev1.Pod{small}); !v[0].Allocated {
		t.Errorf("swap stands against a restart: %+v", v)
	}
}

// TestContainersAreFoundWithoutGroupsOfOurs: if the agent makes no cgroups for pods, containers are found where the
// runtime has put them.
func TestContainersAreFoundWithoutGroupsOfOurs(t *testing.T) {
	tree, root := liveGroup(t)
	g := &groups{tree: tree, assignments: nobodysAssignments(t, tree), unmanaged: true, policy: qos.DefaultPolicy()}
	id := strings.Repeat("0123456789abcdef", 4)
	if _, err := g.Has(onePod("1", "64Mi"), id); err == nil || !strings.Contains(err.Error(), "cgroupsPerQOS: false") {
		t.Errorf("a container that is not there: %v", err)
	}
	inside := path.Join(root, "k8s.io", id)
	if err := tree.Apply(inside, qos.Values{Memory: unit.LimitTo(64 * unit.MiB)}); err != nil {
		t.Fatal(err)
	}
	pod := onePod("1", "64Mi")
	group, of := g.Sizes(pod)
	has, err := g.Has(pod, id)
	if want := of(&pod.Spec.Containers[0]); err != nil || group != (resize.Size{}) || has.Memory != want.Memory {
		t.Errorf("has %s, is to have %s, its pod %s; %v", has, want, group, err)
	}
	if used, err := g.MemoryInUse(pod, id); err != nil || used > unit.MiB {
		t.Errorf("%v in use, %v", used, err)
	}
	if counted := g.counted("", "containerd", id); counted != inside {
		t.Errorf("usage is read from %q, want %q", counted, inside)
	}
}
