//go:build e2e

package pods

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	ours "github.com/plimsoll-dev/plimsoll/internal/image"
)

// hasUsers reports whether the node advertises user namespaces, as it does with containerd 2 and runc 1.2 or later.
func (b bench) hasUsers() bool {
	b.t.Helper()
	node := b.node()
	for _, h := range node.Status.RuntimeHandlers {
		if h.Name == "" && h.Features != nil && h.Features.UserNamespaces != nil {
			return *h.Features.UserNamespaces
		}
	}
	return false
}

func (b bench) node() *corev1.Node {
	b.t.Helper()
	node, err := b.API.CoreV1().Nodes().Get(b.t.Context(), b.NodeName, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return node
}

// mapping is the range of a pod, as its container sees it.
func (b bench) mapping(pod, file string) (container, host, length uint64) {
	b.t.Helper()
	text := b.in(pod, "cat", file)
	if _, err := fmt.Sscan(text, &container, &host, &length); err != nil {
		b.t.Fatalf("%s in %s: %q: %v", file, pod, text, err)
	}
	return container, host, length
}

// Each pod with hostUsers: false has a range of ids that no other pod has. In its volumes it sees the owners and modes
// that a pod with the host's users sees. Where the node does not support that, such pods are held.
func TestUserNamespace(t *testing.T) {
	b := at(t)
	b.configMap("source", map[string]string{"a": "one"})
	source := corev1.LocalObjectReference{Name: "source"}
	memory := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
	token := &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
	}}
	spec := func(host *bool) corev1.PodSpec {
		c := workload("c", "sleep", "infinity")
		c.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr(int64(0))}
		for _, name := range []string{"config", "secret", "scratch", "memory", "token"} {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/in/" + name})
		}
		sub := corev1.VolumeMount{Name: "scratch", MountPath: "/in/sub", SubPath: "made"}
		c.VolumeMounts = append(c.VolumeMounts, sub)
		s := lasting(c)
		s.HostUsers = host
		s.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr(int64(2000))}
		s.Volumes = []corev1.Volume{
			{Name: "config",
				VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: source}}},
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: source.Name}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: memory}},
			{Name: "token", VolumeSource: corev1.VolumeSource{Projected: token}},
		}
		return s
	}
	if !b.hasUsers() {
		held := spec(ptr(false))
		held.NodeName = b.NodeName
		b.create("held", held)
		b.held("held", "spec.hostUsers")
		t.Log("this node has no user namespaces: the pod is held")
		return
	}
	b.create("one", spec(ptr(false)))
	b.create("two", spec(ptr(false)))
	b.create("host", spec(nil))
	taken := map[string]uint64{} // by file: the last pod's; 0 is the host's
	for _, name := range []string{"one", "two"} {
		pod := b.ready(name)
		for _, file := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
			container, host, length := b.mapping(name, file)
			if container != 0 || length != 65536 || host%65536 != 0 || taken[file] == host {
				t.Errorf("%s of %s: %d %d %d, taken %v", file, name, container, host, length, taken)
			}
			taken[file] = host
			b.inFile(pod, host)
		}
	}
	b.ready("host")
	if _, host, _ := b.mapping("host", "/proc/self/uid_map"); host != 0 {
		t.Errorf("the host's users begin at %d", host)
	}
	// The root of the pod writes, as the owner of what it finds and of what it makes.
	for _, name := range []string{"one", "host"} {
		b.in(name, "run", "write /in/scratch/x 1", "write /in/memory/x 1", "write /in/sub/x 1", "write /etc/hosts 127.0.0.1",
			"write /dev/termination-log bye")
	}
	seen := func(pod string) string {
		list := b.in(pod, "ls", "-l", "-R", "/in")
		return listed(list) + listed(b.in(pod, "ls", "-l", "/etc/hosts", "/dev/termination-log"))
	}
	own, hosts := seen("one"), seen("host")
	t.Logf("pods with users of their own and with the host's see\n%s", own)
	if own != hosts {
		t.Errorf("a pod with users of its own sees\n%s\none with the host's\n%s", own, hosts)
	}
	for _, name := range []string{"scratch", "memory", "config", "config/..payload/a", "secret/..payload/a", "scratch/x"} {
		if !strings.Contains(own, " 0:2000 "+name+"\n") {
			t.Errorf("%s is not root's and the fsGroup's:\n%s", name, own)
		}
	}
}

// inFile checks the file from which the next agent, ours or the kubelet, learns the range of a pod.
func (b bench) inFile(pod *corev1.Pod, host uint64) {
	b.t.Helper()
	type ids struct{ HostID, ContainerID, Length uint64 }
	var file struct{ UIDMappings, GIDMappings []ids }
	path := filepath.Join(b.AgentRoot(), "pods", string(pod.UID), "userns")
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	want := ids{host, 0, 65536}
	if err != nil || !slices.Equal(file.UIDMappings, []ids{want}) || !slices.Equal(file.GIDMappings, []ids{want}) {
		b.t.Errorf("%s: %s (%v)", path, text, err)
	}
}

// payload is the name of the directory with a volume's content, which is replaced as a whole. It differs from pod to
// pod.
var payload = regexp.MustCompile(`\.\.\d{4}(_\d\d){5}\.\d+`)

// listed keeps of each line of `ls -l` what two pods have in common: mode, owner and name.
func listed(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 4 {
			fmt.Fprintln(&out, f[0], f[1], payload.ReplaceAllString(f[3], "..payload"))
		}
	}
	return out.String()
}

// Where the runtime supports it, an image or a directory of it is mounted as a volume, for pods with the host's users
// and with their own. While the image does not exist, the container waits, and its reason says so. Elsewhere such pods
// are held.
func TestImageVolume(t *testing.T) {
	b := at(t)
	spec := func(reference, subPath string) corev1.PodSpec {
		c := workload("c", "sleep", "infinity")
		c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/image", SubPath: subPath}}
		s := lasting(c)
		s.NodeName = b.NodeName
		s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: reference, PullPolicy: corev1.PullNever},
		}}}
		return s
	}
	b.create("whole", spec(ours.Demo, ""))
	if lacks := b.node().Annotations["plimsoll.dev/agent-lacks"]; strings.Contains(lacks, "volumes.image") {
		b.held("whole", "spec.volumes[v].image")
		t.Log("this node does not mount images: the pod is held")
		return
	}
	b.ready("whole")
	if got := strings.Fields(b.in("whole", "ls", "/image")); !slices.Contains(got, "workload") {
		t.Errorf("in the image: %s", got)
	}
	if out, err := b.tryIn("whole", "write", "/image/x", "1"); err == nil {
		t.Errorf("it can be written to: %s", out)
	}
	if b.hasUsers() {
		own := spec(ours.Demo, "")
		own.HostUsers = ptr(false)
		b.create("own", own)
		b.ready("own")
		if got := listed(b.in("own", "ls", "-l", "/image/workload")); !strings.Contains(got, " 0:0 ") {
			t.Errorf("with users of its own it sees %s", got)
		}
	}
	b.create("part", spec(ours.Demo, "etc"))
	b.ready("part")
	if got := strings.Fields(b.in("part", "ls", "/image")); !slices.Equal(got, []string{"group", "passwd"}) {
		t.Errorf("in the directory of the image: %s", got)
	}
	b.create("none", spec("plimsoll.example/none:1", ""))
	b.until("none", "shows that the image is not there", soon, waiting("c", "ErrImageNeverPull"))
	b.event("none", "ErrImageNeverPull", "plimsoll.example/none:1")
}
