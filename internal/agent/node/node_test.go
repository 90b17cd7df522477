package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestNewNodeIsReadyInItsFirstWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		c.images = []*runtimeapi.Image{{RepoTags: []string{"small:1"}, Size: 1}, {RepoTags: []string{"big:1"},
			RepoDigests: []string{"big@sha256:1"}, Size: 9}, {Size: 100}}
		o := options(t, s, c, r)
		o.Labels = map[string]string{"example.com/rack": "7"}
		o.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}
		_, stop := start(t, o)
		defer stop()
		time.Sleep(100 * time.Millisecond) // of the bubble's clock
		synctest.Wait()
		if log := s.took(); !slices.Equal(log, []string{"create nodes", "get leases", "create leases"}) {
			t.Errorf("wrote %v", log)
		}
		node, lease := s.now()
		if ready := condition(node, corev1.NodeReady); ready.Status != corev1.ConditionTrue ||
			ready.Reason != "KubeletReady" || ready.LastTransitionTime.IsZero() {
			t.Errorf("Ready: %+v", ready)
		}
		if mem := condition(node, corev1.NodeMemoryPressure); mem.Status != corev1.ConditionFalse ||
			mem.Reason != "KubeletHasSufficientMemory" {
			t.Errorf("MemoryPressure: %+v", mem)
		}
		wantLabels := map[string]string{"kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux",
			"kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
			"example.com/rack": "7"}
		if !reflect.DeepEqual(node.Labels, wantLabels) || len(node.Spec.Taints) != 1 {
			t.Errorf("labels %v, taints %v", node.Labels, node.Spec.Taints)
		}
		st := node.Status
		if st.Allocatable.Memory().String() != "3937156Ki" || st.Capacity.Cpu().String() != "2" ||
			st.Capacity.Pods().String() != "110" || st.Capacity.StorageEphemeral().String() != "64800356Ki" {
			t.Errorf("capacity %v, allocatable %v", st.Capacity, st.Allocatable)
		}
		if q, ok := st.Capacity["hugepages-2Mi"]; !ok || !q.IsZero() {
			t.Errorf("huge pages %v, %v", q, ok)
		}
		if st.NodeInfo.ContainerRuntimeVersion != "containerd://1.6.20" ||
			st.NodeInfo.OSImage != "Debian GNU/Linux 12 (bookworm)" || *st.NodeInfo.Swap.Capacity != 1<<30 ||
			st.DaemonEndpoints.KubeletEndpoint.Port != 10250 {
			t.Errorf("node info %+v", st.NodeInfo)
		}
		if len(st.Images) != 2 || st.Images[0].Names[0] != "big@sha256:1" || st.Images[1].Names[0] != "small:1" {
			t.Errorf("images %+v", st.Images)
		}
		wantAddresses := []corev1.NodeAddress{{Type: "InternalIP", Address: "192.0.2.7"}, {Type: "Hostname", Address: "n1"},
			{Type: "InternalDNS", Address: "localhost"}}
		if !reflect.DeepEqual(st.Addresses, wantAddresses) {
			t.Errorf("addresses %v", st.Addresses)
		}
		if *lease.Spec.HolderIdentity != "n1" || *lease.Spec.LeaseDurationSeconds != 40 || len(lease.OwnerReferences) != 1 ||
			lease.OwnerReferences[0].UID != node.UID {
			t.Errorf("lease %+v", lease)
		}
		if got := r.took(); !slices.Equal(got, []string{"Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure",
			"NodeHasSufficientPID", "NodeReady"}) {
			t.Errorf("events %v", got)
		}
	})
}

func TestSteadyNodeSaysLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		_, stop := start(t, options(t, s, c, r))
		defer stop()
		time.Sleep(time.Second)
		synctest.Wait()
		s.took()
		before, _ := s.now()
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		count := map[string]int{}
		for _, line := range s.took() {
			count[line]++
		}
		if n := count["update leases"]; n < 170 || n > 180 {
			t.Errorf("%d renewals in half an hour, want one each 10 s and a little", n)
		}
		if n := count["patch nodes"]; n < 5 || n > 6 || len(count) != 2 {
			t.Errorf("%v, want a status each 5 minutes", count)
		}
		after, _ := s.now()
		was, is := condition(before, corev1.NodeReady), condition(after, corev1.NodeReady)
		if is.LastHeartbeatTime.Equal(&was.LastHeartbeatTime) || !is.LastTransitionTime.Equal(&was.LastTransitionTime) {
			t.Errorf("times: %+v, then %+v", was, is)
		}
		var patch struct{ Status map[string]any }
		if err := json.Unmarshal(s.patches[0], &patch); err != nil || len(patch.Status) != 2 { // conditions and their order
			t.Errorf("an unchanged status sent %s", s.patches[0])
		}
	})
}

func TestRuntimeComesLateGoesAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		c.set(true, false, nil)
		_, stop := start(t, options(t, s, c, r))
		defer stop()
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		node, _ := s.now()
		want := "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin " +
			"not initialized"
		if ready := condition(node, corev1.NodeReady); ready.Status != corev1.ConditionFalse ||
			ready.Reason != "KubeletNotReady" || ready.Message != want {
			t.Errorf("network not ready: %+v", ready)
		}
		r.took()
		c.set(true, true, nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if node, _ = s.now(); condition(node, corev1.NodeReady).Status != corev1.ConditionTrue ||
			!slices.Equal(r.took(), []string{"NodeReady"}) {
			t.Errorf("not Ready a second after the network: %+v", condition(node, corev1.NodeReady))
		}
		c.set(true, true, errors.New("unavailable"))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if node, _ = s.now(); condition(node, corev1.NodeReady).Status != corev1.ConditionTrue {
			t.Errorf("a restart of the runtime showed: %+v", condition(node, corev1.NodeReady))
		}
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if node, _ = s.now(); condition(node, corev1.NodeReady).Message != "container runtime is down" ||
			!slices.Equal(r.took(), []string{"NodeNotReady"}) {
			t.Errorf("a dead runtime: %+v", condition(node, corev1.NodeReady))
		}
		c.set(true, true, nil)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if node, _ = s.now(); condition(node, corev1.NodeReady).Status != corev1.ConditionTrue {
			t.Errorf("back again: %+v", condition(node, corev1.NodeReady))
		}
	})
}

func TestTakesOverAnExistingNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		s.node = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "old", Labels: map[string]string{"kubernetes.io/arch": "arm64",
				"example.com/rack": "8", "theirs": "x"}},
			Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: "theirs", Effect: "NoSchedule"}}},
			Status: corev1.NodeStatus{
				NodeInfo: corev1.NodeSystemInfo{BootID: "boot-0"},
				Addresses: []corev1.NodeAddress{
					{Type: "InternalIP", Address: "198.51.100.1"},
					{Type: "ExternalIP", Address: "203.0.113.1"},
				},
				Conditions: []corev1.NodeCondition{
					{Type: "KernelDeadlock", Status: "False"},
					{Type: "Ready", Status: "Unknown", Reason: "NodeStatusUnknown"},
				},
				Capacity: corev1.ResourceList{"hugepages-1Gi": *quantity(1),
					"example.com/gpu": *quantity(2)}, Allocatable: corev1.ResourceList{},
			},
		}
		o := options(t, s, c, r)
		o.Labels = map[string]string{"example.com/rack": "7", "example.com/new": "1"}
		_, stop := start(t, o)
		defer stop()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		node, _ := s.now()
		want := map[string]string{"kubernetes.io/arch": "amd64", "example.com/rack": "8", "example.com/new": "1",
			"theirs": "x"}
		for key, value := range want {
			if node.Labels[key] != value {
				t.Errorf("label %s is %q, want %q", key, node.Labels[key], value)
			}
		}
		if len(node.Spec.Taints) != 1 || condition(node, "KernelDeadlock").Status != "False" ||
			condition(node, "Ready").Status != "True" {
			t.Errorf("taints %v, conditions %v", node.Spec.Taints, node.Status.Conditions)
		}
		if len(node.Status.Addresses) != 3 || node.Status.Addresses[0].Address != "192.0.2.7" {
			t.Errorf("addresses %v", node.Status.Addresses)
		}
		if _, ok := node.Status.Capacity["hugepages-1Gi"]; ok {
			t.Error("a page size that is gone stayed")
		}
		if _, ok := node.Status.Capacity["example.com/gpu"]; !ok {
			t.Error("an extended resource was lost")
		}
		if got := r.took(); !slices.Equal(got, []string{"Starting", "Rebooted", "NodeNotSchedulable", "NodeReady",
			"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"}) {
			t.Errorf("events %v", got)
		}
	})
}

func TestAnswersWhenGivenUpOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		k, stop := start(t, options(t, s, c, r))
		defer stop()
		time.Sleep(time.Second)
		s.edit(func(n *corev1.Node) {
			i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
			n.Status.Conditions[i].Status, n.Status.Conditions[i].Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
		})
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if node, _ := s.now(); condition(node, corev1.NodeReady).Status != corev1.ConditionTrue {
			t.Errorf("still %+v", condition(node, corev1.NodeReady))
		}
		r.took()
		s.edit(func(n *corev1.Node) { n.Spec.Unschedulable = true })
		s.edit(func(n *corev1.Node) { n.Labels["x"] = "y" })
		synctest.Wait()
		if got := r.took(); !slices.Equal(got, []string{"NodeNotSchedulable"}) || k.Node().Labels["x"] != "y" {
			t.Errorf("events %v, labels %v", got, k.Node().Labels)
		}
	})
}

// TestAnnouncedFirst: Announce is called before the Node exists, and again when it exists, each time.
func TestAnnouncedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		o := options(t, s, c, r)
		o.Announce = func(context.Context) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.log = append(s.log, "announce")
		}
		_, stop := start(t, o)
		defer stop()
		registered := func() {
			t.Helper()
			time.Sleep(15 * time.Second)
			synctest.Wait()
			if log := s.took(); len(log) < 3 || !slices.Equal(log[:3], []string{"announce", "create nodes", "announce"}) ||
				slices.Contains(log[3:], "announce") {
				t.Errorf("did %v", log)
			}
		}
		registered()
		s.deleteNode()
		registered()
	})
}

func TestRegistersAgainWhenDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		_, stop := start(t, options(t, s, c, r))
		defer stop()
		time.Sleep(15 * time.Second)
		s.deleteNode()
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		node, lease := s.now()
		if node.UID != "uid-2" || condition(node, corev1.NodeReady).Status != corev1.ConditionTrue ||
			lease.OwnerReferences[0].UID != "uid-2" {
			t.Errorf("node %s, lease of %s", node.UID, lease.OwnerReferences[0].UID)
		}
	})
}

func TestLeaseWrittenOrDeletedByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		_, stop := start(t, options(t, s, c, r))
		defer stop()
		time.Sleep(time.Second)
		s.mu.Lock()
		s.lease.ResourceVersion = s.next()
		s.mu.Unlock()
		s.took()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if log := s.took(); !slices.Equal(log, []string{"update leases", "get leases", "update leases"}) {
			t.Errorf("after a conflict: %v", log)
		}
		s.mu.Lock()
		s.lease = nil
		s.mu.Unlock()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if log := s.took(); !slices.Equal(log, []string{"update leases", "get leases", "create leases"}) {
			t.Errorf("after a deletion: %v", log)
		}
	})
}

func TestAPIAwayForTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		s.setDown(errRefused)
		k, stop := start(t, options(t, s, c, r))
		defer stop()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(s.took()); n < 17 || n > 45 || k.Node() != nil {
			t.Errorf("%d attempts to register in two minutes, want one each 3.5 to 7 s", n)
		}
		s.setDown(nil)
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if k.Node() == nil {
			t.Fatal("not registered 7 s after the API server came back")
		}
		s.setDown(errRefused)
		c.set(true, false, nil)
		s.took()
		time.Sleep(2 * time.Minute)
		if n := len(s.took()); n > 80 {
			t.Errorf("%d attempts in two minutes, want two each 3.5 to 7 s", n)
		}
		s.setDown(nil)
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if node, lease := s.now(); condition(node, corev1.NodeReady).Status != corev1.ConditionFalse ||
			time.Since(lease.Spec.RenewTime.Time) > 10*time.Second {
			t.Errorf("the change was lost: %+v, lease %v old", condition(node, corev1.NodeReady),
				time.Since(lease.Spec.RenewTime.Time))
		}
	})
}

// TestStuckMainLoop: the Node first reports that the main loop is stuck. Then its Lease is withheld, and the agent does
// not answer a controller that sets Ready to Unknown: a node that is stuck must not look alive.
func TestStuckMainLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		o := options(t, s, c, r)
		var turned atomic.Pointer[time.Time] // read by several goroutines
		var stuck atomic.Bool
		o.MainLoop = func() time.Time {
			if !stuck.Load() {
				now := time.Now()
				turned.Store(&now)
			}
			return *turned.Load()
		}
		_, stop := start(t, o)
		defer stop()
		time.Sleep(time.Minute)
		stuck.Store(true)
		time.Sleep(mainLoopDownAfter + 11*time.Second)
		synctest.Wait()
		if node, lease := s.now(); condition(node, corev1.NodeReady).Status != corev1.ConditionFalse ||
			!strings.Contains(condition(node, corev1.NodeReady).Message, "last read") ||
			time.Since(lease.Spec.RenewTime.Time) > 11*time.Second {
			t.Errorf("stuck for two minutes: %+v, lease %v old", condition(node, corev1.NodeReady),
				time.Since(lease.Spec.RenewTime.Time))
		}
		time.Sleep(time.Minute)
		s.edit(func(n *corev1.Node) {
			for i := range n.Status.Conditions {
				n.Status.Conditions[i].Status = corev1.ConditionUnknown
			}
		})
		s.took()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if log := s.took(); len(log) != 0 {
			t.Errorf("a stuck agent said %v", log)
		}
		stuck.Store(false)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if node, lease := s.now(); condition(node, corev1.NodeReady).Status != corev1.ConditionTrue ||
			time.Since(lease.Spec.RenewTime.Time) > 11*time.Second {
			t.Errorf("it turns again: %+v, lease %v old", condition(node, corev1.NodeReady),
				time.Since(lease.Spec.RenewTime.Time))
		}
	})
}

// TestShuttingDown: a node whose machine is about to shut down is not ready, and says so in the kubelet's words, at
// once. When the shutdown is cancelled, it is ready again.
func TestShuttingDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, r := newServer(), newCRI(), &recorder{}
		o := options(t, s, c, r)
		var down atomic.Bool
		o.ShuttingDown = down.Load
		k, stop := start(t, o)
		defer stop()
		time.Sleep(time.Minute)
		for _, is := range []bool{true, false} {
			down.Store(is)
			k.Changed()
			time.Sleep(time.Second)
			synctest.Wait()
			node, _ := s.now()
			ready := condition(node, corev1.NodeReady)
			if (ready.Status == corev1.ConditionFalse) != is || is && (ready.Reason != "KubeletNotReady" ||
				ready.Message != "node is shutting down") {
				t.Errorf("shutting down: %v: %+v", is, ready)
			}
		}
	})
}

// TestFrozenRuntime: a runtime that neither answers nor refuses.
func TestFrozenRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		_, stop := start(t, options(t, s, c, r))
		defer stop()
		time.Sleep(time.Minute)
		c.freeze()
		time.Sleep(runtimeDownAfter + 16*time.Second)
		synctest.Wait()
		if node, lease := s.now(); condition(node, corev1.NodeReady).Message != "container runtime is down" ||
			time.Since(lease.Spec.RenewTime.Time) > 11*time.Second {
			t.Errorf("frozen for half a minute: %+v, lease %v old", condition(node, corev1.NodeReady),
				time.Since(lease.Spec.RenewTime.Time))
		}
		time.Sleep(3 * time.Minute)
		s.took()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if log := s.took(); len(log) != 0 {
			t.Errorf("an agent whose runtime is frozen said %v", log)
		}
		c.thaw()
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if node, lease := s.now(); condition(node, corev1.NodeReady).Status != corev1.ConditionTrue ||
			time.Since(lease.Spec.RenewTime.Time) > 6*time.Second {
			t.Errorf("the runtime answers again: %+v, lease %v old", condition(node, corev1.NodeReady),
				time.Since(lease.Spec.RenewTime.Time))
		}
	})
}

// TestCloud: an external cloud controller sets the node's addresses.
func TestCloud(t *testing.T) {
	ip := netip.MustParseAddr
	for name, c := range map[string]struct {
		nodeIPs    []netip.Addr
		first      string // addresses until the cloud controller sets them
		annotation string
	}{
		"told nothing": {nil, "Hostname=n1", ""},
		"told --node-ip": {[]netip.Addr{ip("192.0.2.7"), ip("2001:db8::7")},
			"InternalIP=192.0.2.7 Hostname=n1 InternalDNS=localhost", "192.0.2.7,2001:db8::7"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			runtime := newCRI()
			r := &recorder{}
			o := options(t, s, runtime, r)
			o.Cloud = &Cloud{NodeIPs: c.nodeIPs}
			o.Taints = []corev1.Taint{{Key: "ours", Effect: corev1.TaintEffectNoSchedule}}
			_, stop := start(t, o)
			defer stop()
			time.Sleep(15 * time.Second)
			synctest.Wait()
			node, _ := s.now()
			if got := addressText(node); got != c.first || node.Annotations[annotationNodeIP] != c.annotation {
				t.Errorf("%s: addresses %q, annotation %q", name, got, node.Annotations[annotationNodeIP])
			}
			if len(node.Spec.Taints) != 2 || node.Spec.Taints[1].Key != taintUninitialized ||
				condition(node, corev1.NodeReady).Status != corev1.ConditionTrue {
				t.Errorf("%s: taints %v, %+v", name, node.Spec.Taints, condition(node, corev1.NodeReady))
			}
			s.edit(func(n *corev1.Node) {
				n.Spec.Taints = n.Spec.Taints[:1]
				n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.9"},
					{Type: corev1.NodeExternalIP, Address: "203.0.113.9"}, {Type: corev1.NodeExternalDNS, Address: "n1.example.com"}}
			})
			time.Sleep(20 * time.Minute)
			synctest.Wait()
			if node,
				_ := s.now(); addressText(node) != "InternalIP=10.0.0.9 ExternalIP=203.0.113.9 ExternalDNS=n1.example.com" ||
				len(node.Spec.Taints) != 1 {
				t.Errorf("%s: the cloud spoke, then %q, %v", name, addressText(node), node.Spec.Taints)
			}
		})
	}
}

func addressText(node *corev1.Node) string {
	var words []string
	for _, a := range node.Status.Addresses {
		words = append(words, string(a.Type)+"="+a.Address)
	}
	return strings.Join(words, " ")
}

// TestTakesOverFromAKubelet: leftovers of the kubelet that the agent does not maintain are removed. Labels that
// describe the machine are restored, whatever other clients write. The existing Node's provider ID stays.
func TestTakesOverFromAKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		s.node = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "kubelet's", ResourceVersion: "1",
				Annotations: map[string]string{annotationNodeIP: "198.51.100.1", "theirs": "stays"}},
			Spec: corev1.NodeSpec{ProviderID: "cloud://old"},
			Status: corev1.NodeStatus{
				VolumesInUse:     []corev1.UniqueVolumeName{"kubernetes.io/csi/x"},
				DeclaredFeatures: []string{"ExtendWebSocketsToKubelet"},
				Capacity:         corev1.ResourceList{"example.com/gpu": *quantity(2)},
				Allocatable:      corev1.ResourceList{"example.com/gpu": *quantity(2)},
			},
		}
		o := options(t, s, c, r)
		o.ProviderID = "cloud://new"
		_, stop := start(t, o)
		defer stop()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		node, _ := s.now()
		if node.Status.VolumesInUse != nil || node.Status.DeclaredFeatures != nil || node.Spec.ProviderID != "cloud://old" ||
			node.Status.Capacity.Name("example.com/gpu", "").Value() != 2 {
			t.Errorf("volumes %v, features %v, provider %s, capacity %v", node.Status.VolumesInUse, node.Status.DeclaredFeatures,
				node.Spec.ProviderID, node.Status.Capacity)
		}
		if _, stale := node.Annotations[annotationNodeIP]; stale || node.Annotations["theirs"] != "stays" {
			t.Errorf("annotations %v", node.Annotations)
		}
		s.edit(func(n *corev1.Node) { delete(n.Labels, corev1.LabelOSStable); n.Labels[corev1.LabelArchStable] = "z80" })
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if node, _ := s.now(); node.Labels[corev1.LabelOSStable] != "linux" ||
			node.Labels[corev1.LabelArchStable] != "amd64" {
			t.Errorf("labels %v", node.Labels)
		}
	})
}

func TestPressureIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		o := options(t, s, c, r)
		var p Pressure
		o.Pressure = func() Pressure { return p }
		k, stop := start(t, o)
		defer stop()
		time.Sleep(time.Second)
		r.took()
		synctest.Wait()
		p = Pressure{Memory: true}
		k.Changed()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		node, _ := s.now()
		if mem := condition(node, corev1.NodeMemoryPressure); mem.Status != corev1.ConditionTrue ||
			mem.Reason != "KubeletHasInsufficientMemory" || !slices.Equal(r.took(), []string{"NodeHasInsufficientMemory"}) {
			t.Errorf("MemoryPressure %+v", mem)
		}
	})
}

func TestWaitsForSomebodyElsesNodeWithoutRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		o := options(t, s, c, r)
		o.Register = false
		k, stop := start(t, o)
		defer stop()
		time.Sleep(5 * time.Second)
		if k.Node() != nil || slices.Contains(s.took(), "create nodes") {
			t.Error("registered")
		}
		s.mu.Lock()
		s.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "theirs"}}
		s.mu.Unlock()
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if node, _ := s.now(); condition(node, corev1.NodeReady).Status != corev1.ConditionTrue {
			t.Error("the node that appeared was not kept")
		}
	})
}

func TestKubeletVersionIsSemantic(t *testing.T) {
	v, err := version.ParseSemantic(kubeletVersion())
	if err != nil || v.Major() != 1 || v.Minor() != 36 || v.Patch() != 3 ||
		!strings.HasPrefix(kubeletVersion(), "v1.36.3+plimsoll.") {
		t.Errorf("%s: %v", kubeletVersion(), err)
	}
}

func TestLabelsAndTaints(t *testing.T) {
	labels, err := ParseLabels("a=1,example.com/b=,node.kubernetes.io/c=x,kubernetes.io/arch=amd64")
	if err != nil || len(labels) != 4 {
		t.Errorf("%v, %v", labels, err)
	}
	_, err = ParseLabels("a,b=c d,kubernetes.io/role=x,node-role.kubernetes.io/worker=,a=1,a=2")
	for _, want := range []string{`"a": want key=value`, `b: "c d"`, "kubernetes.io/role: a node must not",
		"node-role.kubernetes.io/worker: a node must not", `a is already "1"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	taints, err := ParseTaints("a=b:NoSchedule,c:NoExecute")
	if err != nil || len(taints) != 2 || taints[0].Value != "b" || taints[1].Effect != corev1.TaintEffectNoExecute {
		t.Errorf("%v, %v", taints, err)
	}
	_, err = ParseTaints("a,b:Never,c:NoExecute,c:NoExecute")
	for _, want := range []string{`"a": want key`, `effect "Never"`, "twice"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}

func TestAddresses(t *testing.T) {
	addr := netip.MustParseAddr
	have := map[string][]netip.Addr{
		"lo": {addr("127.0.0.1")}, "eth0": {addr("fe80::1"), addr("2001:db8::1"),
			addr("192.0.2.1")}, "eth6": {addr("2001:db8::6")}, "down0": {addr("198.51.100.1")},
	}
	for name, c := range map[string]struct {
		a      Addresses
		routes []string
		want   string
	}{
		"of the default route":       {Addresses{}, []string{"eth0"}, "InternalIP=192.0.2.1 Hostname=h"},
		"IPv6 when it leads out":     {Addresses{}, []string{"eth6"}, "InternalIP=2001:db8::6 Hostname=h"},
		"IPv4 of any that leads out": {Addresses{}, []string{"eth6", "eth0"}, "InternalIP=192.0.2.1 Hostname=h"},
		"no way out":                 {Addresses{}, nil, "InternalIP=198.51.100.1 Hostname=h"},
		"chosen, one per family": {Addresses{NodeIPs: []netip.Addr{addr("2001:db8::6"), addr("192.0.2.1")}}, nil,
			"InternalIP=2001:db8::6 InternalIP=192.0.2.1 Hostname=h"},
		"served on loopback": {Addresses{Serving: addr("::1")}, []string{"eth0"},
			"InternalIP=192.0.2.1 Hostname=h InternalDNS=localhost"},
		"of any IPv6": {Addresses{NodeIPs: []netip.Addr{addr("::")}}, []string{"eth0"},
			"InternalIP=2001:db8::1 Hostname=h"},
		"of any IPv4": {Addresses{NodeIPs: []netip.Addr{addr("0.0.0.0")}}, []string{"eth6", "eth0"},
			"InternalIP=192.0.2.1 Hostname=h"},
		"by the host's name": {Addresses{Hostname: "resolves"}, []string{"eth0"},
			"InternalIP=198.51.100.1 Hostname=resolves"},
		"the name is of elsewhere": {Addresses{Hostname: "elsewhere"}, []string{"eth0"},
			"InternalIP=192.0.2.1 Hostname=elsewhere"},
		"the name is an address": {Addresses{Hostname: "203.0.113.5"}, []string{"eth0"},
			"InternalIP=203.0.113.5 Hostname=203.0.113.5"},
		"chosen, not of this machine": {Addresses{NodeIPs: []netip.Addr{addr("203.0.113.9")}}, nil,
			"--node-ip 203.0.113.9: no interface"},
	} {
		c.a.Hostname = cmp.Or(c.a.Hostname, "h")
		c.a.Lookup = func(name string) ([]netip.Addr, error) {
			return map[string][]netip.Addr{"resolves": {addr("127.0.0.1"), addr("198.51.100.1")},
				"elsewhere": {addr("203.0.113.5")}}[name], nil
		}
		c.a.Interfaces = func() ([]string, error) { return slices.Sorted(maps.Keys(have)), nil }
		c.a.Of = func(name string) ([]netip.Addr, error) { return have[name], nil }
		c.a.Own = func() ([]netip.Addr, error) { return slices.Concat(slices.Collect(maps.Values(have))...), nil }
		c.a.Routes = func() ([]string, error) { return c.routes, nil }
		found, err := c.a.Find()
		var got []string
		for _, f := range found {
			got = append(got, string(f.Type)+"="+f.Address)
		}
		if text := strings.Join(got, " "); text != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %q, %v, want %q", name, text, err, c.want)
		}
	}
	if found, err := (Addresses{Hostname: "h"}).ThisMachine().Find(); err != nil {
		t.Logf("this machine: %v, %v", found, err) // a machine without a network is a valid machine too
	}
	for text, ok := range map[string]bool{"": true, "192.0.2.1": true, "192.0.2.1,2001:db8::1": true,
		"192.0.2.1,192.0.2.2": false, "x": false,
		"0.0.0.0": true, "::": true, "::,192.0.2.1": false, "224.0.0.1": false, "fe80::1": false, "2001:db8::1%eth0": false} {
		if _, err := ParseNodeIPs(text); (err == nil) != ok {
			t.Errorf("--node-ip %q: %v", text, err)
		}
	}
}
