package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/agent/numa"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/server"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// admit applies core/admission with the pods that are here and what the node offers now. It implements pods.Admission.
type admit struct {
	holdings                 *numa.Keeper
	plugins                  *plugins
	staticCPUs, staticMemory bool // cpuManagerPolicy and memoryManagerPolicy are static
	swaps                    func(*corev1.Pod, *corev1.Container) bool

	node  func() scheduler.Node          // as last seen
	fresh func() (scheduler.Node, error) // as it is now

	conditions func() []eviction.Condition // the pressures that hold
}

// Admit gives the pod what is to be its own and counts what it requests, both or neither, in upstream's order: what
// cannot be its own is told first.
func (a admit) Admit(pod *corev1.Pod, others []*corev1.Pod) *pods.Rejection {
	if r := a.underPressure(pod); r != nil {
		return &pods.Rejection{Reason: r.Reason, Message: r.Message}
	}
	var rejected *pods.Rejection
	refusal, asks := a.holdings.Admit(translate.NUMAPod(pod), func() bool {
		rejected = a.count(pod, others)
		return rejected == nil
	})
	switch {
	case asks:
		return &pods.Rejection{Asks: true}
	case refusal != nil:
		return &pods.Rejection{Reason: refusal.Reason, Message: refusal.Message(), Later: refusal.Waiting, Room: true}
	}
	return rejected
}

// Consult implements pods.Admission.
func (a admit) Consult(ctx context.Context, pod *corev1.Pod) *pods.Rejection {
	refusal := a.holdings.Consult(ctx, string(pod.UID))
	if refusal == nil {
		return nil
	}
	return &pods.Rejection{Reason: refusal.Reason, Message: refusal.Message(), Later: refusal.Waiting, Room: true}
}

// Give implements pods.Admission.
func (a admit) Give(ctx context.Context, pod *corev1.Pod) *pods.Rejection {
	return a.plugins.give(ctx, string(pod.UID))
}

// Wait implements pods.Admission.
func (a admit) Wait(pod *corev1.Pod, since time.Time) (string, time.Time) {
	a.plugins.tell() // what is waited for may be there this moment
	return a.plugins.wait(pod, since)
}

// count applies core/admission.
func (a admit) count(pod *corev1.Pod, others []*corev1.Pod) *pods.Rejection {
	held := make([]scheduler.Pod, 0, len(others))
	for _, o := range others {
		held = append(held, translate.PlacementPod(o))
	}
	r := admission.Check(translate.PlacementPod(pod), held, a.node())
	if r != nil && (r.Reason == admission.NodeAffinity || r.Reason == admission.TaintToleration) {
		// The label that the pod asks for may have come a moment ago, or the taint that it does not tolerate gone.
		if node, err := a.fresh(); err == nil {
			r = admission.Check(translate.PlacementPod(pod), held, node)
		}
	}
	if r != nil {
		return &pods.Rejection{Reason: r.Reason, Message: r.Message, Room: r.Room}
	}
	return nil
}

func (a admit) underPressure(pod *corev1.Pod) *admission.Rejection {
	conditions := a.conditions()
	if len(conditions) == 0 {
		return nil
	}
	return admission.UnderPressure(translate.AdmissionApplicant(pod), conditions)
}

// Resize judges pods that ask for other resources than they were granted.
func (a admit) Resize(requests []pods.ResizeRequest, held []*corev1.Pod) []pods.Verdict {
	has := make([]scheduler.Pod, 0, len(held))
	for _, h := range held {
		has = append(has, translate.PlacementPod(h))
	}
	asked := make([]admission.Resize, 0, len(requests))
	for _, request := range requests {
		wants := *request.Desired
		wants.Status = corev1.PodStatus{} // what it has does not count for what it asks for
		asked = append(asked, admission.Resize{
			Want: translate.PlacementPod(&wants), Has: translate.PlacementPod(request.Granted),
			Class: qos.ClassOf(translate.QoSPod(request.Desired)), Since: request.Since, Never: admission.Never(a.changeOf(request)),
		})
	}
	verdicts := make([]pods.Verdict, 0, len(requests))
	for _, v := range admission.Resizes(asked, has, a.node()) {
		verdicts = append(verdicts, pods.Verdict(v))
	}
	return verdicts
}

// changeOf says what a resize changes, and what of this node stands against it.
func (a admit) changeOf(request pods.ResizeRequest) admission.Change {
	c := translate.AdmissionChange(request.Granted, request.Desired, a.swaps)
	c.StaticCPUs = a.staticCPUs
	c.StaticMemory = a.staticMemory
	return c
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
