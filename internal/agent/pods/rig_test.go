package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/runtimehandler"
	"github.com/plimsoll-dev/plimsoll/internal/agent/statusreport"
	"github.com/plimsoll-dev/plimsoll/internal/agent/userns"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/amounts"
)

const noon = unit.Instant(12 * time.Hour)

// testRunner returns a runner without a runtime and an API server, for tests of translations.
func testRunner() *Runner {
	r := &Runner{Options: Options{
		Node: "Node-1", RootDir: "/var/lib/x", LogDir: "/var/log/pods", HostIPs: []string{"192.0.2.1",
			"2001:db8::1"}, RuntimeName: "containerd",
		QOSClass: func(*corev1.Pod) corev1.PodQOSClass { return corev1.PodQOSBurstable },
		Recorder: record.NewFakeRecorder(100), Devices: noDevices{},
		Users:   userns.Lacking(errors.New("no user namespaces here")),
		Metrics: measurements(),
	}, clock: clock.New()}
	r.report = statusreport.New(r.Client, r.Node)
	r.static = newStatic(r, nil)
	r.handlers = runtimehandler.New(r.Client)
	return r
}

// workerOf returns the worker of a pod while no goroutine has it.
func workerOf(r *Runner, e *podentry.Entry) *worker {
	w := e.Wake().(*worker)
	w.view.From = r.sources() // the test may have set them since
	e.HandBack(w)
	return w
}

// A broken invariant of an entry ends the tests.
func init() {
	podentry.Broken = func(uid types.UID, what string) { panic(fmt.Sprintf("pod %s: %s", uid, what)) }
}

// noDevices is Devices of a node without plugins.
type noDevices struct{}

func (noDevices) Status(string, string) []corev1.ResourceStatus { return nil }
func (noDevices) Release(string)                                {}
func (noDevices) Configure(context.Context, string, string, *runtimeapi.ContainerConfig) error {
	return nil
}

func testPod() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	grace, deadline := int64(7), int64(60)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-1", Generation: 3, ResourceVersion: "10"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyOnFailure, TerminationGracePeriodSeconds: &grace,
			ActiveDeadlineSeconds: &deadline,
			InitContainers: []corev1.Container{
				{Name: "init", Image: "i:1"},
				{Name: "side", Image: "s:1", RestartPolicy: &always},
			},
			Containers: []corev1.Container{
				{Name: "zeta", Image: "z:1"},
				{Name: "alpha", Image: "a:1", RestartPolicy: &always},
			},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/lb"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// said returns the next Event that was recorded; empty: there is none.
func said(r *record.FakeRecorder) string {
	select {
	case e := <-r.Events:
		return e
	default:
		return ""
	}
}

func reported(name, allocated, requests, limits string) corev1.ContainerStatus {
	r := amounts.Of(requests, limits)
	return corev1.ContainerStatus{Name: name, AllocatedResources: amounts.List(allocated), Resources: &r}
}
