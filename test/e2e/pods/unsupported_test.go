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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// held waits until a pod is held for a field, and returns it.
func (b bench) held(name, field string) *corev1.Pod {
	b.t.Helper()
	return b.until(name, "held for "+field, soon, func(p *corev1.Pod) error {
		c := condition(p, corev1.PodReadyToStartContainers)
		if p.Status.Phase != corev1.PodPending || c.Status != corev1.ConditionFalse || c.Reason != "UnsupportedField" ||
			!strings.Contains(c.Message, field) {
			return fmt.Errorf("phase %s, condition %+v", p.Status.Phase, c)
		}
		return nil
	})
}

// countEvents counts the Events about a pod with one of the reasons.
func (b bench) countEvents(pod string, reasons ...string) (count int32) {
	b.t.Helper()
	events, err := b.API.CoreV1().Events(b.ns).List(b.t.Context(),
		metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.name": pod}.String()})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range events.Items {
		for _, reason := range reasons {
			if e.Reason == reason {
				count += max(e.Count, 1)
			}
		}
	}
	return count
}

// A pod with a field that the agent cannot carry out is held: none of its containers runs, one Event says why, and it
// is gone at once when it is deleted. The Node lists such fields, and the scheduler binds no such pod to it.
func TestUnsupportedFields(t *testing.T) {
	b := at(t)
	for name, c := range map[string]struct {
		field  string
		change func(*corev1.PodSpec)
	}{
		"users": {"spec.hostUsers", func(s *corev1.PodSpec) { s.HostUsers = ptr(false) }},
		"volume": {"spec.volumes[v].iscsi", func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{
					TargetPortal: "192.0.2.1", IQN: "iqn.2001-04.com.example:v",
				}}}}
		}},
		"claim": {"persistent volume " + b.remoteVolume("claim") + " is of kind iscsi", func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
				}}}
		}},
	} {
		spec := lasting(workload("c", "sleep", "infinity"))
		c.change(&spec)
		if name == "users" {
			b.create("sent", spec)
			b.until("sent", "kept off the node", soon, func(p *corev1.Pod) error {
				if why := condition(p, corev1.PodScheduled); why.Status != corev1.ConditionFalse ||
					!strings.Contains(why.Message, "1 node(s) had an agent that would hold the pod: it has no user-namespaces") {
					return fmt.Errorf("node %q, %+v", p.Spec.NodeName, why)
				}
				return nil
			})
		}
		spec.NodeName = b.NodeName
		b.create(name, spec)
		p := b.held(name, c.field)
		b.event(name, "UnsupportedField", c.field)
		if p.Status.PodIP != "" || container(p, "c").ContainerID != "" || container(p, "c").State.Waiting == nil {
			t.Errorf("%s: something of it is there: %+v", name, p.Status)
		}
		reasons := []string{"UnsupportedField", "FailedCreatePodSandBox"}
		// the Node authorizer may not know yet that a pod of this node uses the claim: FailedMount, as with the kubelet
		if name != "claim" {
			reasons = append(reasons, "FailedMount")
		}
		if told := b.countEvents(name, reasons...); told != 1 {
			t.Errorf("%s: %d Events", name, told)
		}
		b.delete(name, -1, slack)
	}
	node, err := b.API.CoreV1().Nodes().Get(t.Context(), b.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range node.Status.RuntimeHandlers {
		if f := h.Features; f != nil && f.UserNamespaces != nil && *f.UserNamespaces {
			t.Errorf("handler %q: user namespaces are advertised", h.Name)
		}
	}
}

// remoteVolume binds a claim to a volume of a kind that the agent does not mount, and returns the volume's name.
func (b bench) remoteVolume(claim string) string {
	b.t.Helper()
	name, none := b.ns+"-remote", ""
	size := corev1.ResourceList{corev1.ResourceStorage: quantity("1Gi")}
	access := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	_, err := b.API.CoreV1().PersistentVolumes().Create(b.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: access, ClaimRef: &corev1.ObjectReference{Namespace: b.ns, Name: claim},
			PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
				TargetPortal: "192.0.2.1",
				IQN:          "iqn.2001-04.com.example:v",
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = b.API.CoreV1().PersistentVolumes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	_, err = b.API.CoreV1().PersistentVolumeClaims(b.ns).Create(b.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: access, StorageClassName: &none, VolumeName: name,
			Resources: corev1.VolumeResourceRequirements{Requests: size}},
	}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	rig.Eventually(b.t, soon, "claim "+claim+" is bound", func(ctx context.Context) error {
		c, err := b.API.CoreV1().PersistentVolumeClaims(b.ns).Get(ctx, claim, metav1.GetOptions{})
		if err == nil && c.Status.Phase != corev1.ClaimBound {
			err = fmt.Errorf("phase %s", c.Status.Phase)
		}
		return err
	})
	return name
}

// Pods that upstream's kubelet rejects are rejected with the same reasons.
func TestRejectedBySystem(t *testing.T) {
	b := at(t)
	for name, c := range map[string]struct {
		reason string
		change func(*corev1.Pod)
	}{
		"sysctl": {"SysctlForbidden", func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax",
				Value: "65536"}}}
		}},
		"os": {"PodOSNotSupported", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }},
		"os-label": {"PodOSSelectorNodeLabelDoesNotMatch",
			func(p *corev1.Pod) { p.Labels = map[string]string{corev1.LabelOSStable: "windows"} }},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: lasting(workload("c", "sleep", "infinity"))}
		pod.Spec.NodeName = b.NodeName
		c.change(pod)
		b.post(pod)
		p := b.ended(name, corev1.PodFailed)
		b.want(name+" reason", p.Status.Reason, c.reason)
		e := b.event(name, c.reason)
		b.want(name+" event", "Pod was rejected: "+e.Message, p.Status.Message)
		b.delete(name, -1, soon)
	}
	safe := lasting(workload("c", "sleep", "infinity"))
	safe.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.ipv4.tcp_syncookies",
		Value: "1"}}}
	safe.OS = &corev1.PodOS{Name: corev1.Linux}
	b.create("safe", safe)
	b.ready("safe")
}

// A static pod is held in the same way, and its mirror says so.
func TestUnsupportedStaticPod(t *testing.T) {
	b := at(t)
	write := func(name, extra string) string {
		path := filepath.Join(b.StaticPods(), b.ns+"-"+name+".yaml")
		text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s}\nspec:\n  %s\n"+
			"  containers: [{name: c, image: %q, args: [sleep, infinity]}]\n", name, b.ns, extra, image)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
		return path
	}
	path, windows := write("held", "hostUsers: false"), write("windows", "os: {name: windows}")
	name := "held-" + b.NodeName
	mirror := b.held(name, "spec.hostUsers")
	if mirror.Annotations["kubernetes.io/config.mirror"] == "" || container(mirror, "c").ContainerID != "" {
		t.Errorf("annotations %v, container %+v", mirror.Annotations, container(mirror, "c"))
	}
	rejected := b.ended("windows-"+b.NodeName, corev1.PodFailed)
	b.want("reason", rejected.Status.Reason, "PodOSNotSupported")
	for _, p := range []string{path, windows} {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	b.gone(name, soon)
	b.gone("windows-"+b.NodeName, soon)
}
