package pods

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// statuses is what makes the statuses of pods.
func (r *Runner) statuses() podstatus.Node {
	return podstatus.Node{
		HostIPs:  r.HostIPs,
		Runtime:  r.RuntimeName,
		QOSClass: r.QOSClass,
		Devices:  r.Devices.Status,
	}
}

// publish turns a decision's status into the API's form, keeps it and has it reported if it changed.
func (r *Runner) publish(e *entry, pod *corev1.Pod, o podlife.Observation, d podlife.Decision) {
	if pod == nil {
		return
	}
	readOnly := r.handlers.RecursiveReadOnly(e.handler)
	e.mu.Lock()
	last := e.status
	if last.Phase == "" {
		last = pod.Status
	}
	status := r.statuses().Status(pod, podstatus.Facts{
		Now:               time.Now(),
		Last:              last,
		Observed:          o,
		Decided:           d.Status,
		RecursiveReadOnly: readOnly,
	})
	completed := e.resized(o, d.Status)
	unchanged := e.status.Phase != "" && equality.Semantic.DeepEqual(e.status, status)
	e.status = status
	first := status.Phase == corev1.PodRunning && !e.reported && pod.Status.Phase == corev1.PodPending
	e.reported = e.reported || status.Phase == corev1.PodRunning
	e.mu.Unlock()
	if first {
		r.Metrics.PodStart.Observe(time.Since(podstatus.BoundAt(pod)).Seconds())
		r.Metrics.PodStartTotal.Observe(time.Since(pod.CreationTimestamp.Time).Seconds())
		r.Metrics.StartedPods.Inc()
	}
	if completed != 0 {
		r.log(e).Info("resize completed", "generation", completed)
		text := podstatus.ResizeText("Pod resize completed", pod, completed, "")
		r.event(pod, "", corev1.EventTypeNormal, "ResizeCompleted", text)
	}
	if unchanged {
		r.report.Recheck(e.report)
		return
	}
	for _, event := range podstatus.Events(pod, last, status) {
		r.event(pod, event.Container, event.Kind, event.Reason, event.Text)
	}
	r.countEnds(last, status)
	r.report.Enqueue(e.report)
}

// countEnds counts the ends of containers that a status shows and the status before it does not show.
func (r *Runner) countEnds(before, after corev1.PodStatus) {
	for _, end := range podstatus.Ends(before, after) {
		r.Metrics.TerminatedContainers.WithLabelValues(end.Kind, strconv.Itoa(int(end.Code)), end.Reason).Inc()
	}
}
