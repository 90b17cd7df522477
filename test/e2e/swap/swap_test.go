//go:build e2e

// Package swap gives a node with running pods from upstream's kubelet to our agent and back, five times, while other
// pods come and go (make swap).
//
// The instance's agent is a script that becomes one program or the other. No container of the pods that are watched may
// end: those from the beginning, a static pod, and pods that started seconds before a swap. The test reads the state of
// their processes from the kernel, so it does not depend on reports: on which CPUs they may run, which devices they
// have, which users of the host they have, and what they see of a secret that changes with each swap. Each agent
// removes pods that the other one started, without remains, and their devices are free again. No two pods ever have the
// same device or the same users.
//
// Pods with hostUsers: false take part where the runtime supports them (containerd 2).
package swap

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

const (
	rounds = 5 // from the kubelet to ours and back

	ours    = "plimsoll"
	kubelet = "upstream-kubelet"

	// pluginsDir is where device plugins register; a kubelet takes no other directory.
	pluginsDir = "/var/lib/kubelet/device-plugins"
	gpu        = corev1.ResourceName("example.com/gpu")
)

// config is the configuration of both agents. With it, the second of two CPUs can be assigned to a container. A kubelet
// updates volumes when it syncs a pod, hence the short syncFrequency. The memory manager is left out: a kubelet refuses
// its own checkpoint file if the machine's memory has grown or shrunk, as that of some virtual machines does.
const config = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
clusterDomain: cluster.local
clusterDNS: [10.97.0.10]
syncFrequency: 5s
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 1s
systemReserved: {cpu: 500m}
`

// swapper is an instance whose agent changes.
type swapper struct {
	*rig.Cluster
	t         *testing.T
	which     string // file that says which agent starts next
	namespace string
	kept      map[string]kept // containers that must go on, by pod and container
	users     bool            // the runtime supports user namespaces
}

// kept is a container that runs.
type kept struct {
	pod   types.UID
	id    string
	pid   int    // of its first process
	users string // of its user namespace, as the kernel lists them (user_namespaces(7))
}

func TestSwap(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("takes minutes, and needs bin/upstream-kubelet: make swap")
	}
	s := start(t)
	s.Eventually(time.Minute, "static pod", s.static)
	s.startPlugin()
	s.users = s.supportsUserNamespaces()
	for _, pod := range s.lasting() {
		s.create(pod)
	}
	stop := s.load()
	defer stop()
	for _, pod := range s.lasting() {
		s.keep(pod.Name)
	}
	last := ""
	for round := range rounds {
		for i, agent := range []string{ours, kubelet} {
			s.swap(agent)
			name := fmt.Sprintf("late-%d-%d", round, i)
			s.create(s.late(name)) // it starts seconds before the next swap
			s.keep(name)
			s.changeSecret(fmt.Sprint("round ", round, agent))
			s.check(agent)
			if last != "" { // made by the other agent
				s.remove(last, agent)
			}
			last = name
			t.Logf("round %d: %s has the node, %d containers go on", round, agent, len(s.kept))
		}
		s.Forgive(t)
	}
	stop()
	s.check(kubelet)
	s.freeCPU()
}

// start starts an instance with the kubelet.
func start(t *testing.T) *swapper {
	program := rig.Binary(t)
	bin := filepath.Dir(program)
	if _, err := os.Stat(filepath.Join(bin, kubelet)); err != nil {
		t.Fatalf("%v; run make bench-build", err)
	}
	if _, err := os.Stat("/var/lib/kubelet"); os.IsNotExist(err) { // the kubelet's sockets are always there
		t.Cleanup(func() {
			if err := os.RemoveAll("/var/lib/kubelet"); err != nil {
				t.Error(err)
			}
		})
	}
	dir := t.TempDir()
	s := &swapper{t: t, which: filepath.Join(dir, "which"), kept: map[string]kept{}}
	agent := filepath.Join(dir, "agent")
	script := fmt.Sprintf("#!/bin/sh\ncase $(cat %s) in\n%s) exec %s agent \"$@\" --device-plugins-dir %s;;\n"+
		"*) exec %s \"$@\";;\nesac\n", s.which, ours, program, pluginsDir, filepath.Join(bin, kubelet))
	file := filepath.Join(dir, "config.yaml")
	for path, text := range map[string]string{s.which: kubelet, agent: script, file: config} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.Cluster = rig.New(t, "swap", rig.Options{UpFlags: []string{"--agent-binary", agent, "--agent-config", file}})
	if err := os.WriteFile(filepath.Join(s.StaticPods(), "still.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	s.namespace = s.Namespace(t)
	s.secret("start")
	return s
}

const manifest = `apiVersion: v1
kind: Pod
metadata: {name: still}
spec:
  containers:
  - {name: c, image: ` + image.Workload + `, imagePullPolicy: Never, args: [sleep, infinity]}
`

// Eventually is rig.Eventually in this test.
func (s *swapper) Eventually(within time.Duration, what string, ask func(context.Context) error) {
	s.t.Helper()
	rig.Eventually(s.t, within, what, ask)
}

// plain is a pod that reads a secret.
func plain(name string) *corev1.Pod {
	grace := int64(1)
	c := corev1.Container{
		Name: "c", Image: image.Workload, ImagePullPolicy: corev1.PullNever, Args: []string{"sleep", "infinity"},
		VolumeMounts: []corev1.VolumeMount{{Name: "secret", MountPath: "/secret"}},
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{c},
			Volumes: []corev1.Volume{{Name: "secret", VolumeSource: corev1.VolumeSource{
				Secret: &corev1.SecretVolumeSource{SecretName: "changing"},
			}}},
		},
	}
}

func amounts(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
}

// lasting are the pods that run from the first to the last round.
func (s *swapper) lasting() []*corev1.Pod {
	exclusive := plain("exclusive")
	exclusive.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: amounts("1", "32Mi"), Limits: amounts("1", "32Mi"),
	}
	restarts := plain("restarts-for-resize")
	restarts.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: amounts("50m", "16Mi"), Limits: amounts("100m", "32Mi"),
	}
	restarts.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
		{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer},
		{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
	}
	sidecar := plain("sidecar")
	always := corev1.ContainerRestartPolicyAlways
	first, beside := sidecar.Spec.Containers[0], sidecar.Spec.Containers[0]
	first.Name, first.Args = "first", []string{"exit", "--code", "0"}
	beside.Name, beside.RestartPolicy = "beside", &always
	sidecar.Spec.InitContainers = []corev1.Container{first, beside}
	probed := plain("probed")
	probed.Spec.Containers[0].Args = []string{"http", "--port", "8080"}
	probed.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
	probed.Spec.Containers[0].LivenessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"/workload", "cat", "/secret/key"}},
	}}
	pods := []*corev1.Pod{exclusive, restarts, sidecar, probed, plain("plain"), withDevice("device")}
	if s.users {
		pods = append(pods, withUsers(plain("users")))
	}
	return pods
}

// late is a pod that starts seconds before a swap.
func (s *swapper) late(name string) *corev1.Pod {
	pod := withDevice(name)
	if s.users {
		pod = withUsers(pod)
	}
	return pod
}

func withDevice(name string) *corev1.Pod {
	pod := plain(name)
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1")}
	return pod
}

func withUsers(pod *corev1.Pod) *corev1.Pod {
	host := false
	pod.Spec.HostUsers = &host
	return pod
}

// startPlugin starts a device plugin with a device for each pod that has one at the same time: the lasting one, and the
// last two late ones. It waits until the node offers them.
func (s *swapper) startPlugin() {
	s.t.Helper()
	cmd := exec.Command(rig.Build(s.t, "test/deviceplugin/plugin"), "--dir", pluginsDir, "--resource", string(gpu),
		"--devices", "gpu0@0,gpu1@0,gpu2@0", "--env", "GPUS")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		stdin.Close() // it ends
		if err := cmd.Wait(); err != nil {
			s.t.Error(err)
		}
	})
	s.Eventually(time.Minute, "the node offers devices", func(ctx context.Context) error {
		node, err := s.API.CoreV1().Nodes().Get(ctx, s.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if q := node.Status.Allocatable[gpu]; q.Value() != 3 {
			return fmt.Errorf("%d of 3", q.Value())
		}
		return nil
	})
}

// supportsUserNamespaces reports whether the runtime says that it supports user namespaces.
func (s *swapper) supportsUserNamespaces() bool {
	s.t.Helper()
	node, err := s.API.CoreV1().Nodes().Get(s.t.Context(), s.NodeName, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range node.Status.RuntimeHandlers {
		if h.Name == "" && h.Features != nil && h.Features.UserNamespaces != nil {
			return *h.Features.UserNamespaces
		}
	}
	s.t.Log("the runtime gives no pod users of its own: pods with them are left out")
	return false
}

// alone checks that no two pods have the same device or the same users of the host.
func (s *swapper) alone() {
	s.t.Helper()
	owner := map[string]string{}
	for name, k := range s.kept {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", k.pid))
		if err != nil {
			s.t.Fatal(err)
		}
		users := usersOf(k.pid)
		if users != k.users {
			s.t.Errorf("%s has the users %q, had %q", name, users, k.users)
		}
		var own []string
		for _, variable := range strings.Split(string(environ), "\x00") {
			if strings.HasPrefix(variable, "GPUS=") {
				own = append(own, variable)
			}
		}
		if fields := strings.Fields(users); len(fields) == 3 && fields[1] != "0" {
			own = append(own, "user "+fields[1])
		} else if s.users && (strings.HasPrefix(name, "users/") || strings.HasPrefix(name, "late-")) {
			s.t.Errorf("%s has the users of the host: %q", name, users)
		}
		for _, what := range own {
			if other, taken := owner[what]; taken {
				s.t.Errorf("%s and %s both have %s", name, other, what)
			}
			owner[what] = name
		}
	}
}

func usersOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (s *swapper) create(pod *corev1.Pod) {
	s.t.Helper()
	if _, err := s.API.CoreV1().Pods(s.namespace).Create(s.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *swapper) secret(value string) *corev1.Secret {
	s.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "changing"}, StringData: map[string]string{"key": value}}
	secrets := s.API.CoreV1().Secrets(s.namespace)
	_, err := secrets.Create(s.t.Context(), secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(s.t.Context(), secret, metav1.UpdateOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return secret
}

// keep waits until a pod runs, and adds its containers to those that must go on.
func (s *swapper) keep(name string) {
	s.t.Helper()
	s.Eventually(time.Minute, name+" runs", func(ctx context.Context) error { return s.note(ctx, s.namespace, name) })
}

// note notes the containers of a pod that runs.
func (s *swapper) note(ctx context.Context, namespace, name string) error {
	pod, err := s.API.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	found := map[string]kept{}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if status.State.Terminated != nil {
			continue // an init container
		}
		if status.State.Running == nil {
			return fmt.Errorf("%s/%s: %+v", name, status.Name, status.State)
		}
		_, id, _ := strings.Cut(status.ContainerID, "://")
		pid := firstProcess(id)
		if pid == 0 {
			return fmt.Errorf("%s/%s: no process of %s", name, status.Name, id)
		}
		found[name+"/"+status.Name] = kept{pod: pod.UID, id: id, pid: pid, users: usersOf(pid)}
	}
	if len(found) == 0 {
		return fmt.Errorf("%s has no containers yet: phase %s", name, pod.Status.Phase)
	}
	maps.Copy(s.kept, found)
	return nil
}

// static notes the static pod.
func (s *swapper) static(ctx context.Context) error {
	return s.note(ctx, metav1.NamespaceDefault, "still-"+s.NodeName)
}

// firstProcess returns the oldest process in a container's cgroup; 0: there is none.
func firstProcess(id string) int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var pids []int
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && inContainer(pid, id) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return 0
	}
	return slices.Min(pids)
}

func inContainer(pid int, id string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(text), id)
}

// swap has another agent take the node, and waits until it says so.
func (s *swapper) swap(to string) {
	s.t.Helper()
	before := s.PID(s.t, "agent")
	if err := os.WriteFile(s.which, []byte(to), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := syscall.Kill(before, syscall.SIGTERM); err != nil {
		s.t.Fatalf("end agent %d: %v", before, err)
	}
	s.Eventually(time.Minute, to+" runs", func(context.Context) error {
		pid := s.PID(s.t, "agent")
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || pid == before || filepath.Base(program) != to {
			return fmt.Errorf("agent %d (before %d) is %q, %v", pid, before, program, err)
		}
		return nil
	})
	s.Eventually(time.Minute, "the Node is of "+to, func(ctx context.Context) error {
		node, err := s.API.CoreV1().Nodes().Get(ctx, s.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		version := node.Status.NodeInfo.KubeletVersion
		if strings.Contains(version, "+plimsoll") != (to == ours) {
			return fmt.Errorf("version %s", version)
		}
		return nil
	})
}

// changeSecret changes the secret that all pods read, and waits until their containers see it.
func (s *swapper) changeSecret(value string) {
	s.t.Helper()
	s.secret(value)
	for name, k := range s.kept {
		if strings.HasPrefix(name, "still-") {
			continue
		}
		s.Eventually(2*time.Minute, name+" sees the changed secret", func(context.Context) error {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/secret/key", k.pid))
			if err != nil || string(text) != value {
				return fmt.Errorf("it sees %q, %v, want %q", text, err, value)
			}
			return nil
		})
	}
}

// check checks that all containers are those of the beginning, and that they run on their CPUs.
func (s *swapper) check(agent string) {
	s.t.Helper()
	for name, k := range s.kept {
		if !inContainer(k.pid, k.id) {
			s.t.Errorf("%s has the node: the process of %s has ended", agent, name)
		}
		want := "0"
		if strings.HasPrefix(name, "exclusive/") {
			want = "1"
		}
		s.Eventually(30*time.Second, name+" is on CPU "+want, func(context.Context) error {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", k.pid))
			if err != nil {
				return err
			}
			_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:\t")
			if list, _, _ := strings.Cut(rest, "\n"); list != want {
				return fmt.Errorf("it may run on %s", list)
			}
			return nil
		})
		pod, container, _ := strings.Cut(name, "/")
		namespace := s.namespace
		if strings.HasPrefix(name, "still-") {
			namespace = metav1.NamespaceDefault
		}
		s.Eventually(30*time.Second, name+" is reported as it was", func(ctx context.Context) error {
			return s.reported(ctx, namespace, pod, container, k)
		})
	}
	s.alone()
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// reported checks what the API says of a container.
func (s *swapper) reported(ctx context.Context, namespace, name, container string, k kept) error {
	pod, err := s.API.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if pod.UID != k.pod {
		return fmt.Errorf("it is another pod: %s, before %s", pod.UID, k.pod)
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if status.Name == container {
			if status.RestartCount != 0 || !strings.HasSuffix(status.ContainerID, k.id) || status.State.Running == nil {
				return fmt.Errorf("%d restarts, %s, %+v", status.RestartCount, status.ContainerID, status.State)
			}
			return nil
		}
	}
	return fmt.Errorf("no status")
}

// remove deletes a pod that another agent started. Nothing of it may be left, except its secrets: a kubelet does not
// know where our agent keeps them, so they go when our agent is back.
func (s *swapper) remove(name, agent string) {
	s.t.Helper()
	uid := s.kept[name+"/c"].pod
	delete(s.kept, name+"/c")
	if err := s.API.CoreV1().Pods(s.namespace).Delete(s.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.Eventually(time.Minute, name+" is gone", func(ctx context.Context) error {
		_, err := s.API.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
	s.Eventually(time.Minute, "the directory of "+name+" is gone", func(context.Context) error {
		if _, err := os.Lstat(filepath.Join(s.AgentRoot(), "pods", string(uid))); !os.IsNotExist(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	if agent != ours {
		return
	}
	s.Eventually(time.Minute, "secrets of earlier pods are gone", func(context.Context) error {
		return s.onlyKept(filepath.Join(s.AgentRoot(), "memory"))
	})
}

// onlyKept checks that a directory of pods has none that are gone.
func (s *swapper) onlyKept(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	pods, err := s.API.CoreV1().Pods("").List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return string(p.UID) == e.Name() }) {
			return fmt.Errorf("%s is there", filepath.Join(dir, e.Name()))
		}
	}
	return nil
}

// load creates and deletes pods until the returned function is called.
func (s *swapper) load() (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		now := int64(0)
		pods := s.API.CoreV1().Pods(s.namespace)
		tick := time.NewTicker(700 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			// An error means that the namespace is being deleted, or that the pod is gone.
			_, _ = pods.Create(ctx, plain(fmt.Sprint("load-", n)), metav1.CreateOptions{})
			old := fmt.Sprint("load-", n-4)
			if n%2 == 0 {
				_ = pods.Delete(ctx, old, metav1.DeleteOptions{GracePeriodSeconds: &now})
			} else {
				_ = pods.Delete(ctx, old, metav1.DeleteOptions{})
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// freeCPU deletes the pod with the assigned CPU, and checks that another pod gets it. The NodeResourceTopology of our
// agent is deleted first: a kubelet does not update it, so it would still show the CPU as assigned.
func (s *swapper) freeCPU() {
	s.t.Helper()
	s.Kubectl(s.t, "delete", "noderesourcetopologies", s.NodeName)
	delete(s.kept, "exclusive/c")
	if err := s.API.CoreV1().Pods(s.namespace).Delete(s.t.Context(), "exclusive", metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
	next := s.lasting()[0]
	next.Name = "exclusive-next"
	s.create(next)
	s.keep(next.Name)
}
