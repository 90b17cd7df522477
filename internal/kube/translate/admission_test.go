package translate

import (
	"cmp"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestAdmissionNeeds sets each field for which a pod is rejected, alone.
func TestAdmissionNeeds(t *testing.T) {
	strict, merge := corev1.SupplementalGroupsPolicyStrict, corev1.SupplementalGroupsPolicyMerge
	confined := &corev1.SecurityContext{
		AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault},
	}
	open := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	for name, c := range map[string]struct {
		pod  corev1.Pod
		want string
	}{
		"nothing": {corev1.Pod{}, ""},
		"OS":      {corev1.Pod{Spec: corev1.PodSpec{OS: &corev1.PodOS{Name: corev1.Windows}}}, "os=windows"},
		"OS label": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelOSStable: ""}}},
			"label="},
		"host network": {corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}}, "net"},
		"host IPC":     {corev1.Pod{Spec: corev1.PodSpec{HostIPC: true}}, "ipc"},
		"strict": {corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{
			SupplementalGroupsPolicy: &strict, Sysctls: []corev1.Sysctl{{Name: "net.core.x"}, {Name: "a"}},
		}}}, "strict,net.core.x,a"},
		"merge": {corev1.Pod{
			Spec: corev1.PodSpec{
				SecurityContext: &corev1.PodSecurityContext{SupplementalGroupsPolicy: &merge, AppArmorProfile: open},
			},
		}, ""},
		"AppArmor of the pod": {corev1.Pod{
			Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{AppArmorProfile: confined.AppArmorProfile}},
		}, "apparmor"},
		"AppArmor of a container": {corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{},
			{SecurityContext: confined}}}}, "apparmor"},
		"AppArmor of an init": {corev1.Pod{
			Spec: corev1.PodSpec{InitContainers: []corev1.Container{{SecurityContext: confined}}},
		}, "apparmor"},
		"AppArmor of an ephemeral": {corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{SecurityContext: confined},
		}}}}, "apparmor"},
	} {
		n := AdmissionNeeds(&c.pod)
		got := ""
		add := func(on bool, text string) {
			if on && got != "" {
				got += ","
			}
			if on {
				got += text
			}
		}
		add(n.OS != "", "os="+n.OS)
		if n.OSLabel != nil {
			add(true, "label="+*n.OSLabel)
		}
		add(n.HostNetwork, "net")
		add(n.HostIPC, "ipc")
		add(n.StrictGroups, "strict")
		add(n.AppArmor, "apparmor")
		for _, s := range n.Sysctls {
			add(true, s)
		}
		if got != c.want {
			t.Errorf("%s: needs %q, want %q", name, got, c.want)
		}
	}
}

func TestStarted(t *testing.T) {
	ran := []corev1.ContainerStatus{{Name: "a"}, {Name: "b", ContainerID: "containerd://1"}}
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   bool
	}{
		"new":                     {corev1.PodStatus{}, false},
		"accepted, nothing ran":   {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: ran[:1]}, false},
		"running":                 {corev1.PodStatus{Phase: corev1.PodRunning}, true},
		"in its first containers": {corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: ran}, true},
		"begun":                   {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: ran}, true},
	} {
		if got := Started(&corev1.Pod{Status: c.status}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestAdmissionNode: a node offers its own pods the amounts that the scheduler reads from its Node, except for
// resources that are counted elsewhere.
func TestAdmissionNode(t *testing.T) {
	var resources allocatable.Resources
	resources.CPU.Allocatable = 3920
	resources.Memory.Allocatable = 7 * unit.GiB
	resources.EphemeralStorage.Allocatable = 90 * unit.GiB
	resources.Pods.Allocatable = 110
	resources.HugePages = []allocatable.HugePages{{Size: 2 * unit.MiB}}
	resources.HugePages[0].Allocatable = unit.GiB
	for _, c := range []struct {
		name      string
		uncounted bool
		node      *corev1.Node
	}{
		{"before the Node is known", false, nil},
		{"without local storage", true, nil},
		{"the Node has other amounts, and others' resources", false, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				"cpu":             resource.MustParse("1"),
				"example.com/tpu": resource.MustParse("4"),
				"example.com/gpu": resource.MustParse("2"),
			}},
		}},
	} {
		resources := resources
		resources.StorageUncounted = c.uncounted
		published := &corev1.Node{}
		if c.node != nil {
			published = c.node.DeepCopy()
		}
		_, own := NodeResources(resources)
		for name, q := range published.Status.Allocatable {
			if _, known := own[name]; !known {
				own[name] = q
			}
		}
		delete(own, "example.com/gpu")
		published.Status.Allocatable = own
		got, want := AdmissionNode(resources, c.node, []string{"example.com/gpu"}), SchedulerNode(published)
		for _, n := range []*scheduler.Node{&got, &want} {
			slices.SortFunc(n.Allocatable, func(a, b scheduler.Amount) int { return cmp.Compare(a.Resource, b.Resource) })
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, want)
		}
	}
}
