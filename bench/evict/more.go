package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

const (
	crowdSize = 110 // pods: the default maximum of a node
	creators  = 8   // concurrent requests
	// watching is how long CPU is measured, beginning crowdRest after the last pod runs.
	watching  = 30 * time.Second
	crowdRest = 15 * time.Second
	watcher   = "eviction" // name of the agent's thread that watches memory
)

// crowd measures the CPU of watching as many pods as a node may have.
func (r *rig) crowd(ctx context.Context, m *record.Measurement) error {
	names := make(chan string, crowdSize)
	for i := range crowdSize - steadies {
		names <- fmt.Sprintf("idle-%d", i)
	}
	close(names)
	var mu sync.Mutex
	var problems []error
	var making sync.WaitGroup
	for range creators {
		making.Go(func() {
			for name := range names {
				err := r.create(ctx, podNamed(name, "sleep", "infinity"))
				mu.Lock()
				problems = append(problems, err)
				mu.Unlock()
			}
		})
	}
	making.Wait()
	if err := errors.Join(problems...); err != nil {
		return err
	}
	record.Progress("%s: %d pods run, with %d MiB", r.side, crowdSize, r.usage()>>20)
	if err := record.Pause(ctx, crowdRest); err != nil {
		return err
	}
	cores := func(read func() (float64, error)) (func() (float64, error), error) {
		before, err := read()
		return func() (float64, error) {
			after, err := read()
			return (after - before) / watching.Seconds(), err
		}, err
	}
	whole, err := cores(func() (float64, error) { return record.CPUSeconds(r.agent) })
	thread, err2 := cores(func() (float64, error) { return threadSeconds(r.agent, watcher) })
	if err := errors.Join(err, err2, record.Pause(ctx, watching)); err != nil {
		return err
	}
	for name, read := range map[string]func() (float64, error){"cores": whole, "watch": thread} {
		used, err := read()
		if err != nil {
			return err
		}
		record.Progress("%s: %s %.4f cores", r.side, name, used)
		m.Put(name, used, 1)
	}
	return errors.Join(r.empty(ctx, "idle-"), r.settle(ctx))
}

// empty deletes the pods with a name prefix and waits until they are gone, also from the node. With a grace period of 0
// the API would not wait for the node.
func (r *rig) empty(ctx context.Context, prefix string) error {
	grace := int64(1)
	return r.until(ctx, prefix+" pods are gone", func() error {
		list, err := r.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		left := 0
		for _, pod := range list.Items {
			if !strings.HasPrefix(pod.Name, prefix) {
				continue
			}
			left++
			if pod.DeletionTimestamp == nil {
				err = errors.Join(err, r.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name,
					metav1.DeleteOptions{GracePeriodSeconds: &grace}))
			}
		}
		if left > 0 {
			err = errors.Join(err, fmt.Errorf("%d are there", left))
		}
		return err
	})
}

// threadSeconds returns the CPU time of a process's thread with that name (schedstat, sched-stats.rst: nanoseconds on a
// CPU).
func threadSeconds(pid int, name string) (float64, error) {
	dirs, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		if text, err := os.ReadFile(filepath.Join(dir, "comm")); err != nil || strings.TrimSpace(string(text)) != name {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, "schedstat"))
		fields := strings.Fields(string(text))
		if err != nil || len(fields) == 0 {
			return 0, fmt.Errorf("read %s/schedstat: %q, %w", dir, text, err)
		}
		ns, err := strconv.ParseInt(fields[0], 10, 64)
		return float64(ns) / 1e9, err
	}
	return 0, fmt.Errorf("process %d has no thread %q", pid, name)
}

const (
	// cacheSize is the size of the file that is kept in the page cache. With the steady pods it is more than the pods
	// may use together, by upstream's count, though none of it is needed.
	cacheSize = 740 << 20
	// cachedFor is how long the file is read: several of upstream's periods of 10 s.
	cachedFor = 30 * time.Second
)

// cached counts evictions while a pod reads a large file repeatedly.
func (r *rig) cached(ctx context.Context, m *record.Measurement, runs int) error {
	evictions := 0
	spared := 0
	most := int64(0)
	for n := range runs {
		name := fmt.Sprintf("reader-%d", n)
		if err := r.create(ctx, podNamed(name, "sleep", "infinity")); err != nil {
			return err
		}
		used, err := r.readIn(ctx, name)
		if err != nil {
			return err
		}
		most = max(most, used)
		lost, err := r.lost(ctx)
		if err != nil {
			return err
		}
		pod, err := r.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			lost++
		}
		if evictions += lost; lost == 0 {
			spared++
		}
		record.Progress("%s: page cache: %d MiB in use as upstream counts, %d pods lost, the reader is %s %s", r.side,
			used>>20, lost, pod.Status.Phase, pod.Status.Reason)
		if err := errors.Join(r.empty(ctx, "reader-"), r.settle(ctx)); err != nil {
			return err
		}
	}
	m.Put("cache_evictions", float64(evictions), runs)
	m.Put("cache_spared", float64(spared)/float64(runs), runs)
	m.Put("cache_used", float64(most>>20), runs)
	return nil
}

// readIn runs a program in a pod's memory cgroup that reads a file repeatedly, as long as the pod runs. It returns the
// largest working set of all pods meanwhile.
func (r *rig) readIn(ctx context.Context, pod string) (most int64, err error) {
	procs, err := r.procsOf(ctx, pod)
	if err != nil {
		return 0, err
	}
	file := filepath.Join(r.dir, "cached")
	defer os.Remove(file)
	const script = `echo $$ > "$0" && head -c "$2" /dev/zero > "$1" && while :; do cat "$1" > /dev/null; done`
	reader := exec.CommandContext(ctx, "sh", "-c", script, procs, file, strconv.Itoa(cacheSize))
	if err := reader.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = reader.Process.Kill()
		_ = reader.Wait() // killed, by us or with its pod
	}()
	for end := time.Now().Add(cachedFor); time.Now().Before(end); {
		most = max(most, r.workingSet())
		now, err := r.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.PodRunning {
			break
		}
		if err := errors.Join(err, record.Pause(ctx, 200*time.Millisecond)); err != nil {
			return most, err
		}
	}
	return most, nil
}

// procsOf returns the file of a pod's container by which processes join its memory cgroup.
func (r *rig) procsOf(ctx context.Context, name string) (string, error) {
	pod, err := r.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if len(pod.Status.ContainerStatuses) == 0 {
		return "", fmt.Errorf("pod %s has no container", name)
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	return filepath.Join(r.pods(), "besteffort", "pod"+string(pod.UID), id, "cgroup.procs"), nil
}

// workingSet returns the used memory as upstream counts it.
func (r *rig) workingSet() int64 {
	text, err := os.ReadFile(filepath.Join(r.pods(), "memory.stat"))
	if err != nil {
		return 0
	}
	used := r.usage()
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "total_inactive_file "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			used -= n
		}
	}
	return used
}

// softConfig makes the agent evict pods with a grace period of ten minutes when less than 450 MiB are available.
const softConfig = `evictionSoft: {allocatableMemory.available: 450Mi}
evictionSoftGracePeriod: {allocatableMemory.available: 1s}
evictionMaxPodGracePeriod: 600
`

// preempted measures how soon a pod with ten minutes left is killed when another pod crosses the hard threshold.
func (r *rig) preempted(ctx context.Context, m *record.Measurement, runs int) error {
	var late []float64
	for n := range runs {
		gentle, hasty := fmt.Sprintf("soft-%d", n), fmt.Sprintf("soft-hasty-%d", n)
		pod := podNamed(gentle, "run", "memory --hold=500Mi --for=1ms", "ignore-term")
		*pod.Spec.TerminationGracePeriodSeconds = 600
		if err := r.create(ctx, pod); err != nil {
			return err
		}
		err := r.until(ctx, gentle+" was asked to end", func() error {
			said, err := r.client.CoreV1().Pods(namespace).GetLogs(gentle, &corev1.PodLogOptions{}).DoRaw(ctx)
			if err == nil && !strings.Contains(string(said), "SIGTERM ignored") {
				err = fmt.Errorf("it says %q", said)
			}
			return err
		})
		if err != nil {
			return err
		}
		watching, stop := context.WithTimeout(ctx, roundTimeout)
		seen := make(chan time.Duration, 1)
		go func() { seen <- r.watch(watching) }()
		// Under pressure a node rejects pods without a memory request.
		other := podNamed(hasty, "memory", "--hold=16Mi", "--grow=100Mi", "--max=300Mi")
		other.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")}
		other.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		err = r.create(ctx, other)
		if err == nil {
			killed := <-seen
			if killed > 0 {
				late = append(late, killed.Seconds())
			}
			record.Progress("%s: hard while soft waits: %v after crossing", r.side, killed)
		}
		stop()
		if err := errors.Join(err, r.empty(ctx, "soft-"), r.settle(ctx)); err != nil {
			return err
		}
	}
	if len(late) != runs {
		return fmt.Errorf("hard while soft waits: %d of %d were seen to be killed", len(late), runs)
	}
	m.Put("soft_p50", stats.Quantile(late, 0.5), len(late))
	m.Put("soft_max", stats.Quantile(late, 1), len(late))
	return nil
}
