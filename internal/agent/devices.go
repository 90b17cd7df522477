package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/csidrivers"
	agentdevicemanager "github.com/plimsoll-dev/plimsoll/internal/agent/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/agent/handover"
	agentnuma "github.com/plimsoll-dev/plimsoll/internal/agent/numa"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pluginregistry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podresources"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/remains"
	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/registration"
	"github.com/plimsoll-dev/plimsoll/internal/host/csi"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// plugins connects the device plugins, the assignments of devices and the pod workers. It implements pods.Devices.
type plugins struct {
	*agentdevicemanager.Manager
	assignments *agentnuma.Manager
	changed     func() // has the kubelet's checkpoints written

	mu    sync.Mutex
	known map[string]numa.Plugin // the devices that the assignments know, by resource
}

// prepareDevices prepares the device plugin manager.
func (a *Agent) prepareDevices(context.Context) error {
	a.plugins = &plugins{known: map[string]numa.Plugin{}, changed: a.assignmentsChanged}
	a.plugins.Manager = agentdevicemanager.New(agentdevicemanager.Options{
		Dir:      a.o.DevicePluginsDir,
		Metrics:  a.metrics,
		Affected: func(uid string) { a.pods.Resync(types.UID(uid)) },
		Changed: func() {
			a.plugins.update()
			a.node.Changed()
			a.pods.ResyncHeld()
			// A container whose plugin needs a PreStartContainer call may be waiting for the plugin.
			for _, uid := range a.plugins.PodsWithDevices() {
				a.pods.Retry(types.UID(uid))
			}
		},
	})
	return nil
}

// prepareRegistry prepares the registration of plugins with sockets in plugins_registry.
func (a *Agent) prepareRegistry(context.Context) error {
	a.drivers = csidrivers.New(csidrivers.Options{
		NodeName: a.o.NodeName,
		API:      a.client,
		Node:     func() *corev1.Node { return a.node.Node() },
		Changed:  func(driver string) { a.csiVolumes.DriverChanged(driver) },
		Finished: func(driver string, c csi.Call) {
			a.metrics.ObserveCSI(driver, c.Method, c.Code.String(), c.Migrated, c.Took)
		},
	})
	a.registry = pluginregistry.New(pluginregistry.Options{
		Dir: filepath.Join(a.o.RootDir, "plugins_registry"),
		Handlers: map[registration.Kind]pluginregistry.Handler{
			registration.CSI:    a.drivers,
			registration.Device: a.plugins.Manager,
		},
	})
	a.metrics.Registry.MustRegister(a.registry)
	return nil
}

// recoverDevices recovers the devices of containers that an earlier agent or a kubelet started.
func (p *plugins) recoverDevices(left []remains.Pod, byKubelet handover.Found) {
	for _, r := range left {
		for container, annotation := range r.Devices {
			var err error
			if annotation != "" {
				err = p.Recover(string(r.UID), container, annotation)
			} else {
				err = p.RecoverGiven(string(r.UID), container, byKubelet.Given(string(r.UID), container))
			}
			if err != nil {
				slog.Warn("a container's devices were not recovered; their plugin is asked when the container starts again",
					"uid", r.UID, "container", container, "err", err)
			}
		}
	}
}

// update passes the present devices to the assignments.
func (p *plugins) update() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, present := range p.Inventory() {
		if before, seen := p.known[present.Resource]; !seen || !reflect.DeepEqual(before, present) {
			p.assignments.SetPlugin(present)
			p.known[present.Resource] = present
			p.changed()
		}
	}
}

// wait returns what a pod must wait for, and until when; see pods.Admission.
func (p *plugins) wait(pod *corev1.Pod, since time.Time) (string, time.Time) {
	wants := translate.NUMAPod(pod)
	held, _ := p.assignments.Assignment(wants.UID)
	why, until := p.Wait(since, wants, held)
	if why != "" && until.IsZero() {
		why = fmt.Sprintf("devices are not available: %s (waited for up to %v)", why, devicemanager.Grace)
	}
	return why, until
}

// resources returns the resources of all plugins, including those that are not connected.
func (p *plugins) resources() []string {
	var names []string
	for _, known := range p.Inventory() {
		names = append(names, known.Resource)
	}
	return names
}

// preferred asks a plugin which devices it prefers (GetPreferredAllocation). A plugin that has just gone away has no
// preference; allocate returns the error then.
func (p *plugins) preferred(ctx context.Context, q numa.Question) ([]string, error) {
	ids, err := p.Preferred(ctx, q)
	if errors.Is(err, agentdevicemanager.ErrGone) {
		return nil, nil
	}
	return ids, err
}

// allocate asks the plugins for what a pod's containers need with their devices (Allocate). If that fails, everything
// that was assigned to the pod is released.
func (p *plugins) allocate(ctx context.Context, uid string) *pods.Rejection {
	a, _ := p.assignments.Assignment(uid)
	err := p.AllocateAssigned(ctx, a)
	if err == nil {
		if len(a.Containers) > 0 {
			p.changed()
		}
		return nil
	}
	p.assignments.Release(uid)
	rejection := numa.NotAllocated(err.Error())
	rejection.Waiting = errors.Is(err, agentdevicemanager.ErrGone)
	return pods.RejectionOf(rejection)
}

// Configure implements pods.Devices.
func (p *plugins) Configure(ctx context.Context, uid, container string, config *runtimeapi.ContainerConfig) error {
	a, _ := p.assignments.Assignment(uid)
	for _, h := range a.Containers {
		if h.Container == container {
			return p.Manager.Configure(ctx, uid, container, h.Devices, config)
		}
	}
	return nil
}

// Status implements pods.Devices.
func (p *plugins) Status(uid, container string) []corev1.ResourceStatus {
	var out []corev1.ResourceStatus
	for _, h := range p.Allocations(uid, container) {
		s := corev1.ResourceStatus{Name: corev1.ResourceName(h.Resource)}
		for _, id := range h.IDs {
			health := map[devicemanager.Health]corev1.ResourceHealthStatus{
				devicemanager.Healthy:   corev1.ResourceHealthStatusHealthy,
				devicemanager.Unhealthy: corev1.ResourceHealthStatusUnhealthy,
				devicemanager.Unknown:   corev1.ResourceHealthStatusUnknown,
			}[p.Health(h.Resource, id)]
			s.Resources = append(s.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: health})
		}
		out = append(out, s)
	}
	return out
}

// servePodResources serves the pod resources API until ctx ends.
func (a *Agent) servePodResources(ctx context.Context) error {
	layout, err := numa.New(a.machine, a.numa)
	if err != nil {
		return err
	}
	return podresources.New(podresources.Options{
		Dir:         filepath.Join(a.o.RootDir, "pod-resources"),
		Devices:     a.plugins,
		Config:      a.numa,
		Metrics:     &a.metrics.PodResources,
		Empty:       layout.NewState(),
		Assignments: a.assignments.Assignment,
		Pods: func() []*corev1.Pod {
			var active []*corev1.Pod
			for _, pod := range a.pods.List() {
				if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
					active = append(active, pod)
				}
			}
			return active
		},
	}).Run(ctx)
}
