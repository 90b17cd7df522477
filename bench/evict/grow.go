package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// outcome is the result of one growing pod.
type outcome struct {
	reason string        // of the pod and its container
	killed time.Duration // since the threshold was crossed
	others int           // how many pods ended that should have continued
}

// clean reports whether the agent evicted the growing pod, and no other pod ended.
func (o outcome) clean() bool { return o.reason == "Evicted" && o.others == 0 }

func (o outcome) String() string {
	return fmt.Sprintf("%s, %.1f ms after crossing, others lost %d", o.reason, float64(o.killed.Microseconds())/1000,
		o.others)
}

// grow runs one growing pod to its end.
func (r *rig) grow(ctx context.Context, name, rate string) (outcome, error) {
	var o outcome
	seen := make(chan time.Duration, 1)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go func() { seen <- r.watch(watching) }()
	hold := startAt(rate) - r.usage()
	if err := r.create(ctx, podNamed(name, "memory", fmt.Sprintf("--hold=%d", hold), "--grow="+rate)); err != nil {
		return o, err
	}
	err := r.until(ctx, name+" ends", func() error {
		pod, err := r.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		switch pod.Status.Phase {
		case corev1.PodFailed:
		case corev1.PodSucceeded: // it ends when it is signalled, and the kubelet may report no more than that
			o.reason, err = r.eventReason(ctx, pod)
			return err
		default:
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		if o.reason = pod.Status.Reason; o.reason == "Evicted" && !strings.Contains(pod.Status.Message, "low on resource") {
			o.reason = "refused: " + pod.Status.Message
		}
		for _, c := range pod.Status.ContainerStatuses {
			if end := c.State.Terminated; end != nil && end.Reason == "OOMKilled" {
				o.reason = strings.TrimSpace("OOMKilled " + o.reason)
			}
		}
		return nil
	})
	if err != nil {
		return o, err
	}
	if o.reason == "" {
		o.reason = "ended, not by the agent"
	}
	stop()
	o.killed = <-seen
	if o.others, err = r.lost(ctx); err != nil {
		return o, err
	}
	if err := r.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return o, err
	}
	return o, r.settle(ctx)
}

// eventReason returns "Evicted" if an Event says that the pod was evicted.
func (r *rig) eventReason(ctx context.Context, pod *corev1.Pod) (string, error) {
	which := fields.Set{"involvedObject.uid": string(pod.UID), "reason": "Evicted"}
	events, err := r.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: which.String()})
	if err != nil || len(events.Items) > 0 {
		return "Evicted", err
	}
	return "ended by itself", nil
}

// startAt is what all pods use together when the growth begins: 5 s before the threshold at 5 MiB/s, 4 s at 20, 2 s at
// 100; at higher rates, half of the way to the threshold. A later start would not show growth; an earlier one would
// take hours for twenty runs.
func startAt(rate string) int64 {
	q := resource.MustParse(rate)
	seconds := int64(5)
	switch {
	case q.Value() >= 500<<20:
		return (limit - threshold) / 2
	case q.Value() >= 100<<20:
		seconds = 2
	case q.Value() >= 20<<20:
		seconds = 4
	}
	return limit - threshold - seconds*q.Value()
}

// watch returns how long after the crossing the largest process of the pods was killed; zero: that was not observed. If
// it was killed between two reads, so that no read shows the crossing, the time counts from the read before.
func (r *rig) watch(ctx context.Context) time.Duration {
	const crossing = limit - threshold
	tick := time.NewTicker(readPeriod)
	defer tick.Stop()
	var crossed, last time.Time
	victim := 0
	for {
		select {
		case <-ctx.Done():
			return 0
		case <-tick.C:
		}
		now, used := time.Now(), r.usage()
		if crossed.IsZero() && used > crossing {
			crossed = now
		}
		if victim == 0 && used > crossing*3/4 { // by then no other process is as large
			victim = r.largest()
		}
		if victim != 0 && dying(victim) {
			if crossed.IsZero() {
				crossed = last
			}
			return time.Since(crossed)
		}
		last = now
	}
}

func (r *rig) usage() int64 {
	text, err := os.ReadFile(filepath.Join(r.pods(), "memory.usage_in_bytes"))
	n, perr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || perr != nil {
		return 0
	}
	return n
}

// largest returns the growing pod's process: no other process of the pods uses as much.
func (r *rig) largest() (pid int) {
	var most int64
	files, _ := filepath.Glob(r.pods() + "/besteffort/*/*/cgroup.procs")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(text)) {
			statm, err := os.ReadFile("/proc/" + word + "/statm")
			fields := strings.Fields(string(statm))
			if err != nil || len(fields) < 2 {
				continue
			}
			if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil && pages > most {
				most = pages
				pid, _ = strconv.Atoi(word)
			}
		}
	}
	return pid
}

// sigkill is the bit of SIGKILL in the masks of /proc/<pid>/status.
const sigkill = 1 << (9 - 1)

// dying reports whether a process has SIGKILL pending, or has ended.
func dying(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "State":
			if strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X") {
				return true
			}
		case "SigPnd", "ShdPnd":
			if mask, err := strconv.ParseUint(value, 16, 64); err == nil && mask&sigkill != 0 {
				return true
			}
		}
	}
	return err != nil
}

// lost counts the steady pods that do not run any more, and replaces them.
func (r *rig) lost(ctx context.Context) (n int, err error) {
	for i := range steadies {
		name := fmt.Sprintf("steady-%d", i)
		pod, err := r.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return n, err
		}
		if pod.Status.Phase == corev1.PodRunning {
			continue
		}
		n++
		zero := int64(0)
		if err := r.client.CoreV1().Pods(namespace).Delete(ctx, name,
			metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
			return n, err
		}
		again := pod.DeepCopy()
		again.ObjectMeta = metav1.ObjectMeta{Name: name, Namespace: namespace}
		again.Spec.NodeName, again.Status = "", corev1.PodStatus{}
		if err := r.create(ctx, again); err != nil {
			return n, err
		}
	}
	return n, nil
}
