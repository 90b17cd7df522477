//go:build e2e

package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

func resources(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	if cpu != "" {
		list["cpu"] = quantity(cpu)
	}
	if memory != "" {
		list["memory"] = quantity(memory)
	}
	return list
}

// The QoS class, and the kernel's limits of each pod and container.
func TestCgroups(t *testing.T) {
	b := at(t)
	if _, err := os.Stat("/sys/fs/cgroup/cpu/cpu.shares"); err != nil {
		t.Skip("reads cgroup v1 files, and this machine has none")
	}
	pods := map[string]corev1.ResourceRequirements{
		"best":  {},
		"burst": {Requests: resources("250m", "32Mi"), Limits: resources("", "128Mi")},
		"full":  {Requests: resources("500m", "128Mi"), Limits: resources("500m", "128Mi")},
	}
	for name, r := range pods {
		c := workload("c", "sleep", "infinity")
		c.Resources = r
		b.create(name, lasting(c))
	}
	for name, want := range map[string]struct {
		class      corev1.PodQOSClass
		tier       string
		pod, inner map[string]string // by file: values of the pod's group and of the container's
		score      string
	}{
		"best": {corev1.PodQOSBestEffort, "besteffort/", map[string]string{"cpu/cpu.shares": "2"},
			map[string]string{"cpu/cpu.shares": "2", "cpu/cpu.cfs_quota_us": "-1"}, "1000"},
		"burst": {corev1.PodQOSBurstable, "burstable/", map[string]string{"cpu/cpu.shares": "256",
			"memory/memory.limit_in_bytes": "134217728", "cpu/cpu.cfs_quota_us": "-1"},
			map[string]string{"cpu/cpu.shares": "256", "memory/memory.limit_in_bytes": "134217728",
				"cpu/cpu.cfs_quota_us": "-1"}, ""},
		"full": {corev1.PodQOSGuaranteed, "", map[string]string{"cpu/cpu.shares": "512", "cpu/cpu.cfs_quota_us": "50000",
			"cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": "134217728"},
			map[string]string{"cpu/cpu.shares": "512", "cpu/cpu.cfs_quota_us": "50000",
				"memory/memory.limit_in_bytes": "134217728"}, "-997"},
	} {
		p := b.ready(name)
		b.want(name+" class", string(p.Status.QOSClass), string(want.class))
		group := b.CgroupRoot() + "/kubepods/" + want.tier + "pod" + string(p.UID)
		_, id, _ := strings.Cut(container(p, "c").ContainerID, "://")
		for dir, values := range map[string]map[string]string{group: want.pod, group + "/" + id: want.inner} {
			for file, value := range values {
				controller, file, _ := strings.Cut(file, "/")
				b.want(name+" "+file, readLine(t, filepath.Join("/sys/fs/cgroup", controller, dir, file)), value)
			}
		}
		pids := strings.Fields(readAll(t, filepath.Join("/sys/fs/cgroup/pids", group, id, "cgroup.procs")))
		if len(pids) != 1 {
			t.Errorf("%s: processes %v", name, pids)
			continue
		}
		if score := readLine(t, "/proc/"+pids[0]+"/oom_score_adj"); want.score != "" && score != want.score {
			t.Logf("%s: oom_score_adj %s, want %s", name, score, want.score)
			if want.score[0] != '-' { // a lower one needs CAP_SYS_RESOURCE
				t.Errorf("%s: oom_score_adj %s, want %s", name, score, want.score)
			}
		}
	}
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

func readLine(t *testing.T, path string) string {
	t.Helper()
	return strings.TrimSpace(readAll(t, path))
}

// The agent rejects pods that were bound to the node without the scheduler and do not fit.
func TestAdmission(t *testing.T) {
	b := at(t)
	bound := func(name string, change func(*corev1.PodSpec)) {
		spec := lasting(workload("c", "sleep", "infinity"))
		spec.NodeName = b.NodeName
		change(&spec)
		b.create(name, spec)
	}
	bound("cpu", func(s *corev1.PodSpec) { s.Containers[0].Resources.Requests = resources("1000", "") })
	bound("memory", func(s *corev1.PodSpec) { s.Containers[0].Resources.Requests = resources("", "100Ti") })
	bound("selector", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"disk": "none"} })
	for name, reason := range map[string]string{"cpu": "OutOfcpu", "memory": "OutOfmemory", "selector": "NodeAffinity"} {
		p := b.ended(name, corev1.PodFailed)
		b.want(name+" reason", p.Status.Reason, reason)
		if !strings.HasPrefix(p.Status.Message, "Pod was rejected: ") {
			t.Errorf("%s: message %q", name, p.Status.Message)
		}
		e := b.event(name, reason)
		b.want(name+" event", "Pod was rejected: "+e.Message, p.Status.Message)
		if len(p.Status.ContainerStatuses) != 0 {
			t.Errorf("%s: containers %v", name, p.Status.ContainerStatuses)
		}
		b.delete(name, -1, soon)
	}
	// Ports that another pod has.
	port := freeport.ForTest(t)
	with := func(s *corev1.PodSpec) {
		s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: int32(port)}}
	}
	bound("first", with)
	b.ready("first")
	bound("second", with)
	p := b.ended("second", corev1.PodFailed)
	b.want("ports", p.Status.Reason, "NodePorts")
	// A pod that was deleted by force has its ports until it has ended, and whoever binds the next pod cannot see that.
	b.delete("first", 0, slack)
	bound("third", with)
	b.ready("third")
}

// The effects of security contexts.
func TestSecurityContext(t *testing.T) {
	b := at(t)
	status := func(c corev1.Container, pod *corev1.PodSecurityContext) corev1.PodSpec {
		c.Args = []string{"run", "cat /proc/self/status"}
		spec := brief(c)
		spec.SecurityContext = pod
		return spec
	}
	with := func(sc corev1.SecurityContext) corev1.Container {
		c := workload("c")
		c.SecurityContext = &sc
		return c
	}
	drop := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_BIND_SERVICE"}}
	const bind = "0000000000000400" // CAP_NET_BIND_SERVICE is 10 (capability.h)
	for name, c := range map[string]struct {
		spec corev1.PodSpec
		want []string
	}{
		"user": {status(with(corev1.SecurityContext{RunAsUser: ptr(int64(1234)), RunAsGroup: ptr(int64(99))}),
			&corev1.PodSecurityContext{SupplementalGroups: []int64{7}}),
			[]string{"Uid:\t1234\t1234", "Gid:\t99\t99", "Groups:\t7 99"}},
		"pod-user": {status(with(corev1.SecurityContext{}), &corev1.PodSecurityContext{RunAsUser: ptr(int64(4321)),
			RunAsNonRoot: ptr(true)}), []string{"Uid:\t4321"}},
		"drop": {status(with(corev1.SecurityContext{Capabilities: drop}), nil), []string{"CapBnd:\t" + bind,
			"CapEff:\t" + bind}},
		"seccomp": {status(with(corev1.SecurityContext{
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}), nil), []string{"Seccomp:\t2"}},
		"unconfined": {status(with(corev1.SecurityContext{
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
		}), nil), []string{"Seccomp:\t0"}},
		"no-new": {status(with(corev1.SecurityContext{AllowPrivilegeEscalation: ptr(false)}), nil),
			[]string{"NoNewPrivs:\t1"}},
	} {
		b.create(name, c.spec)
		defer func() {
			b.ended(name, corev1.PodSucceeded)
			log := b.logs(name, "c")
			for _, want := range c.want {
				if !strings.Contains(log, want) {
					t.Errorf("%s lacks %q:\n%s", name, want, log)
				}
			}
		}()
	}
	refused := workload("c", "sleep", "infinity")
	refused.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: ptr(true)}
	b.create("refused", lasting(refused))
	readOnly := workload("c", "run", "write /tmp/x hello")
	readOnly.SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: ptr(true)}
	b.create("readonly", brief(readOnly))
	p := b.until("refused", "refused", soon, waiting("c", "CreateContainerConfigError"))
	if m := container(p, "c").State.Waiting.Message; !strings.Contains(m,
		"container has runAsNonRoot and image will run as root") {
		t.Errorf("refused: %q", m)
	}
	b.ended("readonly", corev1.PodFailed)
	if log := b.logs("readonly", "c"); !strings.Contains(log, "read-only file system") {
		t.Errorf("readonly: %q", log)
	}
}

// Missing images, and references to objects that do not exist yet.
func TestMissing(t *testing.T) {
	b := at(t)
	const absent = "registry.invalid/no/such:1"
	c := corev1.Container{Name: "c", Image: absent, ImagePullPolicy: corev1.PullNever}
	b.create("never", lasting(c))
	c.ImagePullPolicy = corev1.PullIfNotPresent
	b.create("pull", lasting(c))
	c.Image = "UPPER:case"
	b.create("bad-name", lasting(c))
	ref := workload("c", "env", "A")
	ref.Env = []corev1.EnvVar{{Name: "A",
		ValueFrom: &corev1.EnvVarSource{
			ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "later"},
				Key:                  "a",
			},
		}}}
	b.create("env", brief(ref))
	ref.Env[0].ValueFrom = &corev1.EnvVarSource{
		SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "later"}, Key: "a"},
	}
	b.create("secret", brief(ref))
	mounted := workload("c", "cat", "/v/a")
	mounted.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	spec := brief(mounted)
	spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "later"}},
		}}}
	b.create("volume", spec)

	p := b.until("never", "waits", soon, waiting("c", "ErrImageNeverPull"))
	b.want("never", container(p, "c").State.Waiting.Message,
		fmt.Sprintf("Container image %q is not present with pull policy of Never", absent))
	b.event("never", "ErrImageNeverPull", absent)
	p = b.until("pull", "fails", soon, waiting("c", "ErrImagePull"))
	if m := container(p, "c").State.Waiting.Message; !strings.Contains(m, absent) {
		t.Errorf("the message does not name the image: %q", m)
	}
	p = b.until("pull", "backs off", soon, waiting("c", "ImagePullBackOff"))
	if m := container(p, "c").State.Waiting.Message; !strings.HasPrefix(m,
		fmt.Sprintf("Back-off pulling image %q: ErrImagePull: ", absent)) {
		t.Errorf("back-off says %q", m)
	}
	b.event("pull", "Pulling", fmt.Sprintf("Pulling image %q", absent))
	b.event("pull", "Failed", fmt.Sprintf("Failed to pull image %q", absent))
	b.event("pull", "Failed", "Error: ErrImagePull")
	b.event("pull", "BackOff", fmt.Sprintf("Back-off pulling image %q", absent))
	b.event("pull", "Failed", "Error: ImagePullBackOff")
	p = b.until("bad-name", "refused", soon, waiting("c", "InvalidImageName"))
	if m := container(p, "c").State.Waiting.Message; !strings.Contains(m, "UPPER:case") {
		t.Errorf("the message does not name the image: %q", m)
	}
	p = b.until("env", "waits", soon, waiting("c", "CreateContainerConfigError"))
	b.want("env", container(p, "c").State.Waiting.Message, `configmap "later" not found`)
	b.event("env", "Failed", `Error: configmap "later" not found`)
	p = b.until("secret", "waits", soon, waiting("c", "CreateContainerConfigError"))
	b.want("secret", container(p, "c").State.Waiting.Message, `secret "later" not found`)
	b.event("volume", "FailedMount", `MountVolume.SetUp failed for volume "v" : configmap "later" not found`)
	b.until("volume", "waits", soon, waiting("c", "ContainerCreating"))

	b.configMap("later", map[string]string{"a": "here"})
	for _, name := range []string{"env", "secret", "volume"} {
		b.ended(name, corev1.PodSucceeded)
		b.want(name, strings.TrimSpace(b.logs(name, "c")), "here")
	}
	rig.Eventually(t, soon, "kubectl shows the reasons", func(context.Context) error {
		out := b.kubectl("get", "pods")
		for _, want := range []string{"ErrImageNeverPull", "InvalidImageName", "Completed"} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("%s", out)
			}
		}
		return nil
	})
	b.delete("pull", -1, soon)
}
