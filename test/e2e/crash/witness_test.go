//go:build e2e

package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

type ctxT = context.Context

// witness observes the containers of one instance from outside.
type witness struct {
	t       *testing.T
	c       *rig.Cluster
	runtime *cri.Client
	starts  string // one file per pod, one line per start of its container
	// lost is how many addresses and links may be left. containerd 1.6 makes a pod's network some 20 ms before it
	// records the pod. If it dies between the two, nobody knows whose network that was. That is one for each death;
	// down removes it.
	lost int
}

func newWitness(t *testing.T, c *rig.Cluster) *witness {
	t.Helper()
	runtime, err := cri.Dial("unix://" + c.RuntimeSocket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runtime.Close() })
	w := &witness{t: t, c: c, runtime: runtime, starts: filepath.Join(c.Dir, "starts")}
	if err := os.MkdirAll(w.starts, 0o755); err != nil {
		t.Fatal(err)
	}
	return w
}

// spec is a pod that reports its start to the witness and then runs the command then.
func (w *witness) spec(policy corev1.RestartPolicy, grace int64, then string) corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: policy, TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{
			Name: "c", Image: workload, ImagePullPolicy: corev1.PullIfNotPresent,
			Args: []string{"run", "write --append /starts/$(UID) started", then},
			Env: []corev1.EnvVar{{Name: "UID",
				ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}}},
			VolumeMounts: []corev1.VolumeMount{{Name: "starts", MountPath: "/starts"}, {Name: "scratch", MountPath: "/scratch"}},
		}},
		Volumes: []corev1.Volume{
			{Name: "starts", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: w.starts}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}
}

// started counts how often the container of a pod has started.
func (w *witness) started(uid types.UID) int {
	text, err := os.ReadFile(filepath.Join(w.starts, string(uid)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatal(err)
	}
	return strings.Count(string(text), "started")
}

// startsOnce waits for the line of a running container: the runtime reports the container as running a moment before it
// has written that line.
func (w *witness) startsOnce(uid types.UID, what string) {
	w.t.Helper()
	rig.Eventually(w.t, soon, what+" started once", func(ctxT) error {
		if n := w.started(uid); n != 1 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
}

// run is one container as the runtime and the kernel report it.
type run struct {
	ID       string
	Attempt  uint32
	Started  int64 // the runtime's time
	PID      int
	PIDTicks string // the kernel's: field 22 of proc_pid_stat(5)
}

// runs are the running containers by "namespace/pod/container".
func (w *witness) runs(ctx ctxT) (map[string]run, error) {
	list, err := w.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		},
	})
	if err != nil {
		return nil, err
	}
	all := map[string]run{}
	for _, item := range list.Containers {
		answer, err := w.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: item.Id, Verbose: true})
		if err != nil {
			return nil, err
		}
		var info struct{ PID int }
		if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil {
			return nil, err
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", info.PID))
		if err != nil {
			return nil, fmt.Errorf("container %s runs, its process does not: %w", item.Id, err)
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		name := strings.Join([]string{item.Labels["io.kubernetes.pod.namespace"], item.Labels["io.kubernetes.pod.name"],
			item.Labels["io.kubernetes.container.name"]}, "/")
		if twin, twice := all[name]; twice {
			return nil, fmt.Errorf("%s runs twice: %s and %s", name, twin.ID, item.Id)
		}
		all[name] = run{ID: item.Id, Attempt: item.Metadata.GetAttempt(), Started: answer.Status.StartedAt, PID: info.PID,
			PIDTicks: fields[22-3]}
	}
	return all, nil
}

// undisturbed compares the containers that ran before with those that run now, in the runtime, the kernel and the API.
func (w *witness) undisturbed(before map[string]run, namespace string) {
	w.t.Helper()
	now, err := w.runs(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for name, was := range before {
		if now[name] != was {
			w.t.Errorf("%s was %+v and is %+v", name, was, now[name])
		}
	}
	pods, err := w.c.API.CoreV1().Pods(namespace).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	seen := 0
	for _, pod := range pods.Items {
		for _, s := range pod.Status.ContainerStatuses {
			was, known := before[pod.Namespace+"/"+pod.Name+"/"+s.Name]
			if !known {
				continue
			}
			seen++
			if s.ContainerID != "containerd://"+was.ID || s.RestartCount != int32(was.Attempt) || s.State.Running == nil ||
				s.State.Running.StartedAt.Unix() != was.Started/1e9 {
				w.t.Errorf("%s: the API says %s, restarts %d, %+v; it was %+v", pod.Name, s.ContainerID, s.RestartCount, s.State,
					was)
			}
		}
		if n := w.started(pod.UID); n > 1 && before[pod.Namespace+"/"+pod.Name+"/c"].ID != "" {
			w.t.Errorf("%s started %d times", pod.Name, n)
		}
	}
	if seen != len(before) {
		w.t.Errorf("the API knows %d of %d containers that ran", seen, len(before))
	}
}

// only returns what the runtime, the file system, the network and the kernel have beyond the pods that should be here.
func (w *witness) only(ctx ctxT, want []types.UID) error {
	ids, found, err := w.inRuntime(ctx, want)
	if err != nil {
		return err
	}
	left, notes, err := w.onMachine(want)
	if err != nil {
		return err
	}
	strays, shims, err := w.strays(ids)
	if err != nil {
		return err
	}
	found, notes = slices.Concat(found, left, strays), append(notes, shims...)
	if found == nil {
		for _, note := range notes {
			w.t.Log(note)
		}
		return nil
	}
	return errors.New(strings.Join(found[:min(len(found), 20)], "\n  "))
}

// inRuntime returns the ids of all sandboxes and containers that the runtime has, and what it should not have.
func (w *witness) inRuntime(ctx ctxT, want []types.UID) (ids map[string]bool, found []string, err error) {
	add := func(format string, a ...any) { found = append(found, fmt.Sprintf(format, a...)) }
	sandboxes, err := w.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, nil, err
	}
	have := map[types.UID]int{}
	ids = map[string]bool{}
	for _, s := range sandboxes.Items {
		uid := types.UID(s.Labels["io.kubernetes.pod.uid"])
		have[uid]++
		ids[s.Id] = true
		if !slices.Contains(want, uid) || s.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			add("sandbox %s of %s, %v", s.Id, s.Metadata.GetName(), s.State)
		}
	}
	containers, err := w.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, nil, err
	}
	for _, s := range containers.Containers {
		ids[s.Id] = true
		// The last ended attempt of a container is kept, for its logs.
		if !slices.Contains(want, types.UID(s.Labels["io.kubernetes.pod.uid"])) ||
			s.State == runtimeapi.ContainerState_CONTAINER_CREATED {
			add("container %s of %s, %v", s.Id, s.Labels["io.kubernetes.pod.name"], s.State)
		}
	}
	for _, uid := range want {
		if have[uid] != 1 {
			add("pod %s with %d sandboxes", uid, have[uid])
		}
	}
	return ids, found, nil
}

// onMachine returns the directories, cgroups, mounts, addresses and links that should not be there. notes are odd, but
// no failure: a network that containerd forgot when it died (lost).
func (w *witness) onMachine(want []types.UID) (found, notes []string, err error) {
	add := func(format string, a ...any) { found = append(found, fmt.Sprintf(format, a...)) }
	allowed := func(path string) bool {
		return slices.ContainsFunc(want, func(uid types.UID) bool { return strings.Contains(path, string(uid)) })
	}
	for kind, pattern := range map[string]string{
		"pod directory": filepath.Join(w.c.AgentRoot(), "pods", "*"),
		"log directory": filepath.Join(w.c.PodLogs(), "*"),
		"cgroup":        filepath.Join("/sys/fs/cgroup/*", w.c.CgroupRoot(), "kubepods*/pod*"),
		"tier cgroup":   filepath.Join("/sys/fs/cgroup/*", w.c.CgroupRoot(), "kubepods*/*/pod*"),
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, nil, err
		}
		for _, path := range paths {
			if !allowed(path) {
				add("%s %s", kind, path)
			}
		}
	}
	points, err := mount.Below(w.c.AgentRoot())
	if err != nil {
		return nil, nil, err
	}
	for _, point := range points {
		if !allowed(point) && point != filepath.Join(w.c.AgentRoot(), "memory") { // the tmpfs for the secrets of all pods
			add("mount %s", point)
		}
	}
	for kind, pattern := range map[string]string{
		"address": filepath.Join(w.c.StateDir, "cni-leases/*/10.*"),
		"link":    filepath.Join("/sys/class/net", w.c.Bridge(), "brif/*"),
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, nil, err
		}
		if len(paths) > len(want) {
			notes = append(notes, fmt.Sprintf("%d times %s for %d pods", len(paths), kind, len(want)))
		}
		if len(paths) < len(want) || len(paths) > len(want)+w.lost {
			add("%d times %s for %d pods: %v", len(paths), kind, len(want), paths)
		}
	}
	return found, notes, nil
}

// strays returns the running containers that the runtime does not list (ids). A shim without a container does not
// count: if containerd 1.6 dies between the start of a shim and the creation of its container, it keeps the shim and
// forgets its purpose. No CRI call reaches it; `down` ends it.
func (w *witness) strays(ids map[string]bool) (found, notes []string, err error) {
	bundles, err := filepath.Glob(filepath.Join(w.c.RunDir, "containerd/io.containerd.runtime.v2.task/k8s.io/*"))
	if err != nil {
		return nil, nil, err
	}
	for _, bundle := range bundles {
		if ids[filepath.Base(bundle)] {
			continue
		}
		pid, err := os.ReadFile(filepath.Join(bundle, "init.pid"))
		if errors.Is(err, fs.ErrNotExist) {
			notes = append(notes, "shim without container: "+filepath.Base(bundle))
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", string(pid), "cmdline"))
		if err == nil {
			found = append(found, fmt.Sprintf("container %s that the runtime does not list: pid %s, %q", filepath.Base(bundle),
				pid, line))
		}
	}
	return found, notes, nil
}

// running returns the pods of a namespace when there are count of them, and all of them run and are ready.
func running(ctx ctxT, c *rig.Cluster, namespace string, count int) ([]corev1.Pod, error) {
	list, err := c.API.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	ready := 0
	for _, pod := range list.Items {
		switch {
		case podReady(&pod):
			ready++
		case len(list.Items) == count:
			err = fmt.Errorf("%s is %s, %+v", pod.Name, pod.Status.Phase, pod.Status.ContainerStatuses)
		case count == 0:
			err = fmt.Errorf("%s is %s, deletion asked for at %v", pod.Name, pod.Status.Phase, pod.DeletionTimestamp)
		}
	}
	if ready != count || len(list.Items) != count {
		return nil, fmt.Errorf("%d pods, %d ready, want %d: %v", len(list.Items), ready, count, err)
	}
	return list.Items, nil
}

func podReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// nodeReady returns nil when the node is Ready and has no taint.
func nodeReady(ctx ctxT, c *rig.Cluster) error {
	node, err := c.API.CoreV1().Nodes().Get(ctx, c.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ready := condition(node)
	if ready.Status != corev1.ConditionTrue || len(node.Spec.Taints) > 0 {
		return fmt.Errorf("Ready is %s, %s: %s; taints %v", ready.Status, ready.Reason, ready.Message, node.Spec.Taints)
	}
	return nil
}

func condition(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func uids(pods []corev1.Pod) (all []types.UID) {
	for i := range pods {
		all = append(all, pods[i].UID)
	}
	return all
}

// listen listens on a TCP port of this machine, so that nobody else can.
func listen(t *testing.T) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}
