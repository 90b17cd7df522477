package agent

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/server"
	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// admit applies core/admission with the pods that are here and what the node offers now. It implements pods.Admission.
type admit struct {
	node func() placement.Node
}

func (a admit) Admit(pod *corev1.Pod, others []*corev1.Pod) *pods.Rejection {
	held := make([]placement.Pod, 0, len(others))
	for _, o := range others {
		held = append(held, kube.PlacementPod(o))
	}
	if r := admission.Check(kube.PlacementPod(pod), held, a.node()); r != nil {
		return &pods.Rejection{Reason: r.Reason, Message: r.Message}
	}
	return nil
}

// servedPods lets the server ask about pods.
type servedPods struct{ *pods.Runner }

func (s servedPods) Sandbox(namespace, name string, uid types.UID) (string, error) {
	id, err := s.SandboxID(namespace, name, uid)
	return id, notFound(err)
}

func (s servedPods) Container(namespace, name, container string, uid types.UID, previous bool) (server.Container, error) {
	run, err := s.ContainerRun(namespace, name, container, uid, previous)
	if err != nil {
		return server.Container{}, notFound(err)
	}
	c := server.Container{ID: run.ID, LogPath: run.LogPath, State: server.Exited, Attempt: run.Attempt, Tty: run.TTY, Stdin: run.Stdin, StartedAt: run.StartedAt}
	if run.Running {
		c.State = server.Running
	}
	return c, nil
}

// notFound makes the server answer 404 where the pods side says that there is no such thing.
func notFound(err error) error {
	if errors.Is(err, pods.ErrNotFound) {
		return fmt.Errorf("%w: %w", server.ErrNotFound, err)
	}
	return err
}

// logs lists what may need rotation: the logs of running containers.
func logs(r *pods.Runner) func() []podlog.Log {
	return func() []podlog.Log {
		var list []podlog.Log
		for _, run := range r.Running() {
			list = append(list, podlog.Log{Container: run.ID, Path: run.LogPath})
		}
		return list
	}
}

// services keeps the services that announce themselves in containers' environments.
type services struct {
	store      cache.Store
	controller cache.Controller
}

func watchServices(c *kube.Client) services {
	store, controller := c.Informer(kube.Services, kube.Selection{}, cache.ResourceEventHandlerFuncs{})
	return services{store, controller}
}

// in returns the services of a namespace, once all are known.
func (s services) in(namespace string) ([]*corev1.Service, error) {
	if !s.controller.HasSynced() {
		return nil, errors.New("services are not known yet: the API server has not answered")
	}
	var list []*corev1.Service
	for _, obj := range s.store.List() {
		if service := obj.(*corev1.Service); service.Namespace == namespace {
			list = append(list, service)
		}
	}
	return list, nil
}

// measuredPods lists the pods with their cgroups and container ids, for usage.
func (a *Agent) measuredPods() []stats.Pod {
	var list []stats.Pod
	for _, pod := range a.pods.List() {
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.StartTime == nil {
			continue
		}
		group := a.groups.layout.Pod(qos.ClassOf(kube.QoSPod(pod)), string(pod.UID))
		m := stats.Pod{
			Ref: statsapi.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}, Started: pod.Status.StartTime.Time,
			Group: group, HostNetwork: pod.Spec.HostNetwork, VolumeDir: filepath.Join(a.o.RootDir, "pods", string(pod.UID), "volumes"),
		}
		for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for i := range statuses {
				if statuses[i].State.Running != nil {
					m.Containers = append(m.Containers, a.measuredContainer(pod, &statuses[i], group))
				}
			}
		}
		if len(m.Containers) > 0 {
			list = append(list, m)
		}
	}
	return list
}

func (a *Agent) measuredContainer(pod *corev1.Pod, s *corev1.ContainerStatus, group string) stats.Container {
	_, id, _ := strings.Cut(s.ContainerID, "://")
	c := stats.Container{
		Name: s.Name, ID: id, Group: path.Join(group, id), Started: s.State.Running.StartedAt.Time,
		LogDir: filepath.Join(a.o.Config.PodLogsDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID), s.Name),
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == s.Name {
			c.MemoryLimit = uint64(pod.Spec.Containers[i].Resources.Limits.Memory().Value())
		}
	}
	return c
}
