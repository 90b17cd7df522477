//go:build e2e

package volumes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
	ours "github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, "vol", rig.Options{})) }

// soon bounds what takes a second or two on an idle machine.
const soon = 2 * time.Minute

// size is the size of each volume.
var size = resource.MustParse("32Mi")

// bench is what one test works with: the package's node and its own namespace.
type bench struct {
	*rig.Cluster
	t  *testing.T
	ns string
}

func at(t *testing.T) bench {
	c := rig.Shared(t)
	return bench{c, t, c.Namespace(t)}
}

// pod is a pod of one container that does what args say, with volumes, each mounted at its name.
func pod(name string, volumes []corev1.Volume, args ...string) *corev1.Pod {
	grace := int64(1)
	c := corev1.Container{Name: "c", Image: ours.Demo, Args: append([]string{"run"}, args...)}
	for _, v := range volumes {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{c},
			Volumes:                       volumes,
		},
	}
}

func claimOf(name string) corev1.Volume {
	source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source}}
}

func (b bench) create(pod *corev1.Pod) *corev1.Pod {
	b.t.Helper()
	pod, err := b.API.CoreV1().Pods(b.ns).Create(b.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return pod
}

// ready waits until pods are Ready.
func (b bench) ready(names ...string) {
	b.t.Helper()
	for _, name := range names {
		rig.Eventually(b.t, soon, "pod "+name+" Ready", func(ctx context.Context) error {
			p, err := b.API.CoreV1().Pods(b.ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("status %+v", p.Status)
		})
	}
}

// delete deletes pods and waits until they are gone.
func (b bench) delete(names ...string) {
	b.t.Helper()
	for _, name := range names {
		if err := b.API.CoreV1().Pods(b.ns).Delete(b.t.Context(), name, metav1.DeleteOptions{}); err != nil {
			b.t.Fatal(err)
		}
	}
	for _, name := range names {
		b.gone(name)
	}
}

func (b bench) gone(name string) {
	b.t.Helper()
	rig.Eventually(b.t, soon, "pod "+name+" gone", func(ctx context.Context) error {
		p, err := b.API.CoreV1().Pods(b.ns).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%v, %v", p.Status, err)
	})
}

// event waits for an Event of a pod with that reason whose message has every text.
func (b bench) event(pod, reason string, texts ...string) {
	b.t.Helper()
	what := fmt.Sprintf("Event %s of pod %s with %q", reason, pod, texts)
	rig.Eventually(b.t, soon, what, func(ctx context.Context) error {
		selector := fields.Set{"involvedObject.name": pod}.String()
		events, err := b.API.CoreV1().Events(b.ns).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return err
		}
		var said []string
		for _, e := range events.Items {
			said = append(said, e.Reason+": "+e.Message)
			if e.Reason == reason && hasAll(e.Message, texts) {
				return nil
			}
		}
		return fmt.Errorf("have:\n  %s", strings.Join(said, "\n  "))
	})
}

func hasAll(text string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// in runs a verb of the workload program in a pod.
func (b bench) in(pod string, args ...string) (string, error) {
	command := append([]string{"--namespace", b.ns, "exec", pod, "--", "/workload"}, args...)
	out, err := b.TryKubectl(b.t, command...)
	return strings.TrimSpace(out), err
}

// has waits until a file that a pod sees has the content want.
func (b bench) has(pod, file, want string) {
	b.t.Helper()
	rig.Eventually(b.t, soon, "content of "+file, func(context.Context) error {
		got, err := b.in(pod, "cat", file)
		if err == nil && got != want {
			err = fmt.Errorf("%q, want %q", got, want)
		}
		return err
	})
}

// volume creates a persistent volume of a driver and a claim that is bound to it, both of that name in the namespace.
func (b bench) volume(name string, source corev1.CSIPersistentVolumeSource, change ...func(*corev1.PersistentVolume)) {
	b.t.Helper()
	wanted := corev1.ResourceList{corev1.ResourceStorage: size}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	none := ""
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: b.ns + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   modes,
			Capacity:                      wanted,
			ClaimRef:                      &corev1.ObjectReference{Namespace: b.ns, Name: name},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &source},
		},
	}
	for _, c := range change {
		c(v)
	}
	if _, err := b.API.CoreV1().PersistentVolumes().Create(b.t.Context(), v, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = b.API.CoreV1().PersistentVolumes().Delete(context.Background(), v.Name, metav1.DeleteOptions{})
	})
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      v.Spec.AccessModes,
			Resources:        corev1.VolumeResourceRequirements{Requests: wanted},
			StorageClassName: &none,
			VolumeName:       v.Name,
			VolumeMode:       v.Spec.VolumeMode,
		},
	}
	_, err := b.API.CoreV1().PersistentVolumeClaims(b.ns).Create(b.t.Context(), c, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
}

// nothingLeft waits until nothing of a driver is mounted on the node, and no directory of its volumes is left.
func (b bench) nothingLeft(driver string) {
	b.t.Helper()
	staging := filepath.Join(b.AgentRoot(), "plugins/kubernetes.io/csi", driver)
	rig.Eventually(b.t, soon, "nothing left of "+driver, func(context.Context) error {
		points, err := mount.Below(staging)
		if err != nil {
			return err
		}
		entries, err := os.ReadDir(staging)
		if len(points) > 0 || len(entries) > 0 {
			return fmt.Errorf("mounted %v, directories %v (%v)", points, entries, err)
		}
		return nil
	})
}

// metrics returns the agent's /metrics.
func (b bench) metrics() string {
	b.t.Helper()
	return b.ReadAgent(b.t, "/metrics")
}

// summary returns the agent's Summary.
func (b bench) summary() (out statsapi.Summary) {
	b.t.Helper()
	if err := json.Unmarshal([]byte(b.ReadAgent(b.t, "/stats/summary")), &out); err != nil {
		b.t.Fatal(err)
	}
	return out
}
