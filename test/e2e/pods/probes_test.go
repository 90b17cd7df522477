//go:build e2e

package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

func intstrOf(port int) intstr.IntOrString { return intstr.FromInt32(int32(port)) }

func named(port string) intstr.IntOrString { return intstr.FromString(port) }

func get(path string, port int) *corev1.HTTPGetAction {
	return &corev1.HTTPGetAction{Path: path, Port: intstrOf(port)}
}

func probe(h corev1.ProbeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, FailureThreshold: 2}
}

// endpoints are the ready addresses behind a Service.
func (b bench) endpoints(ctx context.Context, service string) (ready []string, err error) {
	slices, err := b.API.DiscoveryV1().EndpointSlices(b.ns).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return nil, err
	}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready {
				ready = append(ready, e.Addresses...)
			}
		}
	}
	return ready, nil
}

// A pod gets traffic only while it is ready.
func TestReadiness(t *testing.T) {
	b := at(t)
	b.kubectl("create", "service", "clusterip", "p", "--tcp=80:8080")
	c := workload("c", "http")
	c.VolumeMounts = []corev1.VolumeMount{{Name: "d", MountPath: "/d"}}
	c.ReadinessProbe = probe(corev1.ProbeHandler{HTTPGet: get("/file?path=/d/open", 8080)})
	spec := lasting(c)
	spec.Volumes = []corev1.Volume{{Name: "d",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	b.create("p", spec)
	want := func(n int) {
		t.Helper()
		rig.Eventually(t, soon, fmt.Sprintf("%d endpoints", n), func(ctx context.Context) error {
			ready, err := b.endpoints(ctx, "p")
			if err == nil && len(ready) != n {
				err = fmt.Errorf("%v", ready)
			}
			return err
		})
	}
	b.event("p", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 404")
	p := b.until("p", "runs", soon, func(p *corev1.Pod) error {
		return wantCondition(p, corev1.PodReady,
			corev1.ConditionFalse)
	})
	if c := condition(p, corev1.ContainersReady); c.Reason != "ContainersNotReady" ||
		c.Message != "containers with unready status: [c]" {
		t.Errorf("ContainersReady: %+v", c)
	}
	want(0)
	b.in("p", "write", "/d/open", "yes")
	p = b.ready("p")
	want(1)
	if ready, err := b.endpoints(t.Context(), "p"); err != nil || ready[0] != p.Status.PodIP {
		t.Errorf("endpoint %v, pod %s", ready, p.Status.PodIP)
	}
	if err := os.Remove(filepath.Join(b.AgentRoot(), "pods", string(p.UID),
		"volumes/kubernetes.io~empty-dir/d/open")); err != nil {
		t.Fatal(err)
	}
	want(0)
	p = b.until("p", "not ready", soon, func(p *corev1.Pod) error {
		return wantCondition(p, corev1.PodReady,
			corev1.ConditionFalse)
	})
	if n := container(p, "c").RestartCount; n != 0 {
		t.Errorf("an unready container was restarted %d times", n)
	}
}

// Liveness and startup probes restart a container; the others begin after the startup probe has succeeded.
func TestLivenessAndStartup(t *testing.T) {
	b := at(t)
	live := workload("c", "http", "--fail-after", "2s")
	live.LivenessProbe = probe(corev1.ProbeHandler{HTTPGet: get("/healthz", 8080)})
	b.create("live", lasting(live))

	stuck := workload("c", "http")
	stuck.StartupProbe = probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstrOf(9)}})
	stuck.ReadinessProbe = probe(corev1.ProbeHandler{HTTPGet: get("/", 8080)})
	b.create("stuck", lasting(stuck))

	late := workload("c", "http", "--ready-after", "4s")
	late.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: get("/readyz", 8080)}, PeriodSeconds: 1,
		FailureThreshold: 30}
	// The timeout is long, so that only an answer counts as a failure: other tests load the machine at the same time.
	late.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: get("/readyz", 8080)}, PeriodSeconds: 1,
		TimeoutSeconds: 20, FailureThreshold: 1}
	b.create("late", lasting(late))

	exec := workload("c", "sleep", "infinity")
	exec.LivenessProbe = probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/workload", "exit",
		"--code", "2"}}})
	b.create("exec", lasting(exec))

	restarted := func(p *corev1.Pod) error {
		if n := container(p, "c").RestartCount; n < 1 {
			return fmt.Errorf("%d restarts", n)
		}
		return nil
	}
	for _, name := range []string{"live", "stuck", "exec"} {
		b.until(name, "restarted", soon, restarted)
	}
	b.event("live", "Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 500")
	b.event("live", "Killing", "Container c failed liveness probe, will be restarted")
	b.event("stuck", "Unhealthy", "Startup probe failed: dial tcp")
	b.event("stuck", "Killing", "Container c failed startup probe, will be restarted")
	b.event("exec", "Unhealthy", "Liveness probe failed:")
	if p := b.ready("late"); container(p, "c").RestartCount != 0 || !*container(p, "c").Started {
		t.Errorf("late: %+v", container(p, "c"))
	}
}
