package pods

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// statuses returns the translator of podlife's statuses into the API's.
func (r *Runner) statuses() podstatus.Node {
	return podstatus.Node{
		HostIPs:  r.HostIPs,
		Runtime:  r.RuntimeName,
		QOSClass: r.QOSClass,
		Devices:  r.Devices.Status,
	}
}

// publish translates a decision's status for the API, stores it, and has it reported if it changed.
func (w *worker) publish(pod *corev1.Pod, o podlife.Observation, d podlife.Decision) {
	if pod == nil {
		return
	}
	r, e := w.r, w.e
	last := e.LastStatus(pod)
	status := r.statuses().Status(pod, podstatus.Facts{
		Now:               time.Now(),
		Last:              last,
		Observed:          o,
		Decided:           d.Status,
		Runs:              w.view.Runs,
		RecursiveReadOnly: r.handlers.RecursiveReadOnly(w.view.Handler),
	})
	change := e.SetStatus(pod, status, o, d.Status)
	if change.Started {
		r.Metrics.PodStart.Observe(time.Since(podstatus.BoundAt(pod)).Seconds())
		total := time.Since(pod.CreationTimestamp.Time)
		r.Metrics.PodStartTotal.Observe(total.Seconds())
		sli := max(0, total-w.measured.pulling-initTime(&status))
		r.Metrics.PodStartSLI.Observe(sli.Seconds())
		if !pod.Spec.HostNetwork {
			r.firstNetworkPod.Do(func() { r.Metrics.FirstNetworkPodStart.Set(sli.Seconds()) })
		}
		r.Metrics.StartedPods.Inc()
	}
	if change.Resized != 0 {
		w.log().Info("resize completed", "generation", change.Resized)
		text := podstatus.ResizeText("Pod resize completed", pod, change.Resized, "")
		r.event(pod, "", corev1.EventTypeNormal, "ResizeCompleted", text)
	}
	if !change.Any {
		r.report.Recheck(e.Report())
		return
	}
	for _, event := range podstatus.Events(pod, last, status) {
		r.event(pod, event.Container, event.Kind, event.Reason, event.Text)
	}
	for _, end := range r.countEnds(last, status) {
		w.noteEnd(pod, &end)
	}
	r.report.Enqueue(e.Report())
}

// countEnds counts and returns the containers that have ended according to a status and not according to the previous
// one.
func (r *Runner) countEnds(before, after corev1.PodStatus) []podstatus.End {
	ends := podstatus.Ends(before, after)
	for _, end := range ends {
		r.Metrics.TerminatedContainers.WithLabelValues(end.Kind, strconv.Itoa(int(end.Code)), end.Reason).Inc()
	}
	return ends
}
