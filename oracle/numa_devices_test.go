package oracle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/info/v1"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestDevices compares the choice of devices with the device manager, behind the same topology manager as the CPU
// manager: one pod on a machine where some devices are assigned, with plugins that have a preference for each choice.
// Upstream reuses devices of an init container in random order, so then only their number is compared.
func TestDevices(t *testing.T) {
	seed := uint64(20261120)
	t.Logf("seed %d, %d pods", seed, *devicePods)
	var admitted, refused, exact atomic.Int64
	dir := t.TempDir()
	inParallel(*devicePods, func(part, n int) {
		rng := rand.New(rand.NewPCG(seed, uint64(3000+part)))
		for range n {
			if t.Failed() {
				return
			}
			c := newDeviceCase(t, rng, dir)
			switch ok, same := c.play(); {
			case !ok:
				refused.Add(1)
			default:
				admitted.Add(1)
				exact.Add(int64(same))
			}
		}
	})
	t.Logf("%d admitted, %d refused; %d times the very devices compared", admitted.Load(), refused.Load(), exact.Load())
}

//go:linkname newDeviceManager k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newDeviceManager(logger klog.Logger, socketPath string, topology []cadvisorapi.Node,
	affinity topologymanager.Store) (*devicemanager.ManagerImpl, error)

type deviceCase struct {
	t       *testing.T
	rng     *rand.Rand
	m       machine.Machine
	config  numa.Config
	k       *kubelet
	devices *devicemanager.ManagerImpl
	state   *numa.State
	plugins []*fakePlugin
	pods    []*corev1.Pod
}

// fakePlugin is a plugin that prefers the devices in wish, then those with the last IDs.
type fakePlugin struct {
	numa.Plugin
	wish []string
}

func newDeviceCase(t *testing.T, rng *rand.Rand, dir string) *deviceCase {
	c := &deviceCase{t: t, rng: rng, m: randomMachine(rng, false)}
	for c.m.CPUs.Len() < 2 || len(c.m.NUMANodes) > 4 {
		c.m = randomMachine(rng, false)
	}
	c.config = randomConfig(rng, c.m)
	c.config.Memory = numa.MemoryConfig{}
	layout, err := numa.New(c.m, c.config)
	k, kerr := newKubelet(c.m, c.config, func(m topologymanager.Manager) (topologymanager.HintProvider, error) {
		var err error
		c.devices, err = newDeviceManager(logr.Discard(), dir+"/kubelet.sock", cadvisorMachine(c.m).Topology, m)
		return c.devices, err
	})
	if err != nil || kerr != nil {
		t.Fatalf("machine %v, config %+v: ours %v, upstream %v", show(c.m), c.config, err, kerr)
	}
	c.k, c.state = k, layout.NewState()
	setField(c.devices, "activePods", devicemanager.ActivePodsFunc(func() []*corev1.Pod { return c.pods }))
	setField(c.devices, "checkpointManager", checkpointmanager.CheckpointManager(noCheckpoints{}))
	for i := range 1 + rng.IntN(2) {
		c.addPlugin(fmt.Sprintf("example.com/r%d", i))
	}
	return c
}

// setField sets an unexported field.
func setField(of any, name string, value any) {
	f := reflect.ValueOf(of).Elem().FieldByName(name)
	reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem().Set(reflect.ValueOf(value))
}

type noCheckpoints struct {
	checkpointmanager.CheckpointManager
}

func (noCheckpoints) CreateCheckpoint(string, checkpointmanager.Checkpoint) error { return nil }

func (c *deviceCase) addPlugin(resource string) {
	p := &fakePlugin{Plugin: numa.Plugin{Resource: resource, Prefers: true}}
	var devices []*pluginapi.Device
	for i := range 1 + c.rng.IntN(7) {
		d := numa.Device{ID: fmt.Sprintf("d%d", i), Healthy: c.rng.IntN(8) > 0}
		up := &pluginapi.Device{ID: d.ID, Health: pluginapi.Healthy}
		if !d.Healthy {
			up.Health = pluginapi.Unhealthy
		}
		for _, n := range c.m.NUMANodes {
			if c.rng.IntN(len(c.m.NUMANodes)) == 0 && len(d.Nodes) < 2 {
				d.Nodes = append(d.Nodes, n.ID)
				if up.Topology == nil {
					up.Topology = &pluginapi.TopologyInfo{}
				}
				up.Topology.Nodes = append(up.Topology.Nodes, &pluginapi.NUMANode{ID: int64(n.ID)})
			}
		}
		p.Devices, devices = append(p.Devices, d), append(devices, up)
	}
	if err := c.devices.PluginConnected(context.Background(), resource, endpoint{p}); err != nil {
		c.t.Fatal(err)
	}
	c.devices.PluginListAndWatchReceiver(logr.Discard(), resource, &pluginapi.ListAndWatchResponse{Devices: devices})
	c.plugins = append(c.plugins, p)
	c.state.SetPlugin(p.Plugin)
}

// play assigns some devices to other pods, then offers a pod to both sides. same is how many resources of containers
// had their exact devices compared.
func (c *deviceCase) play() (admitted bool, same int) {
	c.takeSome()
	p := c.randomPod()
	pod := bothPods(p.UID, p)
	c.pods = append(c.pods, pod)
	result := c.k.topology.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	offer, rejection := c.state.Offer(p, nil)
	answers := numa.Answers{}
	for offer.Question != nil {
		q := offer.Question
		answers[numa.Subject{Container: q.Container, Resource: q.Resource}] = c.plugin(q.Resource).prefer(q.Available,
			q.Included, q.Size)
		offer, rejection = c.state.Offer(p, answers)
	}
	if (rejection == nil) != result.Admit || rejection != nil && (rejection.Reason != result.Reason ||
		len(c.plugins) == 1 && rejection.Upstream != result.Message) {
		c.fail(pod, "upstream %+v, ours %+v %+v", result, rejection, offer)
		return false, 0
	}
	if rejection != nil {
		return false, 0
	}
	for _, h := range offer.Assignment.Containers {
		same += c.compare(pod, h, p)
	}
	return true, same
}

func (c *deviceCase) plugin(resource string) *fakePlugin {
	return c.plugins[slices.IndexFunc(c.plugins, func(p *fakePlugin) bool { return p.Resource == resource })]
}

// takeSome assigns random devices to another pod, the same on both sides.
func (c *deviceCase) takeSome() {
	others := numa.Pod{UID: "others", Containers: []numa.Container{{Name: "c"}}}
	holding := numa.Assigned{Container: "c"}
	for _, p := range c.plugins {
		for _, d := range p.Devices {
			if d.Healthy && c.rng.IntN(3) == 0 {
				p.wish = append(p.wish, d.ID)
			}
		}
		if p.wish != nil {
			others.Containers[0].Devices = append(others.Containers[0].Devices, numa.DeviceRequest{Resource: p.Resource,
				Count: len(p.wish)})
			holding.Devices = append(holding.Devices, numa.Devices{Resource: p.Resource, IDs: p.wish})
		}
	}
	if holding.Devices == nil {
		return
	}
	pod := bothPods("others", others)
	c.pods = append(c.pods, pod)
	if err := c.devices.Allocate(pod, &pod.Spec.Containers[0]); err != nil {
		c.t.Errorf("take devices: %v", err)
	}
	if problems := c.state.Adopt(numa.Assignment{Pod: "others", Containers: []numa.Assigned{holding}}); problems != nil {
		c.t.Errorf("take devices: %q", problems)
	}
	for _, p := range c.plugins {
		p.wish = nil
	}
}

// compare compares one container's devices with upstream's.
func (c *deviceCase) compare(pod *corev1.Pod, h numa.Assigned, p numa.Pod) (same int) {
	affinity := c.k.topology.GetAffinity(string(pod.UID), h.Container)
	var nodes []machine.NUMAID
	if affinity.NUMANodeAffinity != nil {
		for _, n := range affinity.NUMANodeAffinity.GetBits() {
			nodes = append(nodes, machine.NUMAID(n))
		}
	}
	if !slices.Equal(nodes, h.Nodes) || affinity.Preferred != h.Preferred {
		c.fail(pod, "%s: upstream's hint %v %v, ours %v %v", h.Container, nodes, affinity.Preferred, h.Nodes, h.Preferred)
	}
	theirs := map[string][]string{}
	for resource, devices := range c.devices.GetDevices(string(pod.UID), h.Container) {
		for id := range devices {
			theirs[resource] = append(theirs[resource], id)
		}
		slices.Sort(theirs[resource])
	}
	ours := map[string][]string{}
	for _, d := range h.Devices {
		ours[d.Resource] = d.IDs
	}
	for _, plugin := range c.plugins {
		a, b := ours[plugin.Resource], theirs[plugin.Resource]
		reuses := len(p.Init) > 0 // upstream reuses what an init container leaves in the order of a map
		if len(a) != len(b) || !reuses && !slices.Equal(a, b) {
			c.fail(pod, "%s: %s: upstream gives %v, ours %v", h.Container, plugin.Resource, b, a)
		}
		if !reuses && len(a) > 0 {
			same++
		}
	}
	return same
}

func (c *deviceCase) fail(pod *corev1.Pod, format string, args ...any) {
	text := ""
	for _, p := range c.plugins {
		text += fmt.Sprintf("%s %+v\n", p.Resource, p.Devices)
	}
	c.t.Errorf("machine %s\nconfig %+v\n%sfree %+v\npod %+v / %+v\n%s", show(c.m), c.config, text, c.state.FreeDevices(),
		requests(pod.Spec.InitContainers), requests(pod.Spec.Containers), fmt.Sprintf(format, args...))
}

func requests(containers []corev1.Container) string {
	var out []string
	for _, c := range containers {
		text := c.Name
		for name, q := range c.Resources.Limits {
			text += fmt.Sprintf(" %s=%s", name, q.String())
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func (c *deviceCase) randomPod() numa.Pod {
	p := numa.Pod{UID: "p", Guaranteed: true}
	container := func(name string) numa.Container {
		out := numa.Container{Name: name, CPU: 1000 * unit.MilliCPU(1+c.rng.IntN(2)),
			Memory: []numa.MemoryRequest{{Bytes: 1 << 20}}}
		for _, plugin := range c.plugins {
			if c.rng.IntN(4) > 0 {
				out.Devices = append(out.Devices, numa.DeviceRequest{Resource: plugin.Resource, Count: c.rng.IntN(4)})
			}
		}
		return out
	}
	if c.rng.IntN(3) == 0 {
		init := container("init")
		init.Sidecar = c.rng.IntN(2) == 0
		p.Init = append(p.Init, init)
	}
	// After an init container there is only one main container: upstream chooses at random which devices it reuses, and
	// what a second one gets would depend on that.
	mains := 1
	if p.Init == nil {
		mains += c.rng.IntN(2)
	}
	for i := range mains {
		p.Containers = append(p.Containers, container(fmt.Sprintf("main%d", i)))
	}
	return p
}

func (p *fakePlugin) prefer(available, included []string, size int) []string {
	out := slices.Clone(included)
	last := slices.Sorted(slices.Values(available))
	slices.Reverse(last)
	for _, id := range slices.Concat(p.wish, last) {
		if len(out) < size && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// endpoint is a fakePlugin as upstream uses it.
type endpoint struct{ p *fakePlugin }

func (e endpoint) API() pluginapi.DevicePluginClient { return pluginClient{p: e.p} }
func (e endpoint) Resource() string                  { return e.p.Resource }
func (e endpoint) SocketPath() string                { return "" }

type pluginClient struct {
	pluginapi.DevicePluginClient
	p *fakePlugin
}

func (c pluginClient) GetDevicePluginOptions(context.Context, *pluginapi.Empty,
	...grpc.CallOption) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: c.p.Prefers}, nil
}

func (c pluginClient) Allocate(context.Context, *pluginapi.AllocateRequest,
	...grpc.CallOption) (*pluginapi.AllocateResponse, error) {
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{}}}, nil
}

func (c pluginClient) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest,
	_ ...grpc.CallOption) (*pluginapi.PreferredAllocationResponse, error) {
	q := r.ContainerRequests[0]
	ids := c.p.prefer(q.AvailableDeviceIDs, q.MustIncludeDeviceIDs, int(q.AllocationSize))
	return &pluginapi.PreferredAllocationResponse{
		ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: ids}},
	}, nil
}
