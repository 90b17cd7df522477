//go:build e2e

package localnodes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/csi"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// soon bounds what takes a few seconds on two idle cores.
const soon = 90 * time.Second

// keepers are the pods of testdata/keepers.yaml, one on each node.
type keepers struct {
	*rig.Cluster
	t  *testing.T
	ns string
}

// TestVolumes: each node makes and mounts volumes of its own. Pods come back to where their volumes are, also after a
// node's agent and driver were killed, and after down and up.
func TestVolumes(t *testing.T) {
	c := startWith(t, rig.Options{Services: true, Storage: true}, "2", "--without", "coredns,metrics-server")
	k := keepers{Cluster: c, t: t, ns: c.Namespace(t)}
	nodes := []string{c.NodeName, c.NodeName + "-2"}
	for _, node := range nodes {
		k.published(node)
	}
	k.kubectl("apply", "-f", "testdata/keepers.yaml")
	k.wantStarts(1)
	was := k.places(nodes)

	k.kubectl("delete", "pods", "--all")
	k.wantStarts(2)
	if is := k.places(nodes); is != was {
		t.Errorf("pods are on %v, were on %v", is, was)
	}
	t.Run("elsewhere", func(t *testing.T) { k.at(t).elsewhere(was, nodes) })
	t.Run("copies", func(t *testing.T) { k.at(t).copies(was, nodes) })

	for _, child := range []string{"node-2/csi-driver", "node-2/storage"} {
		killChild(t, c, child, nodes[1])
	}
	killChild(t, c, "node-2/agent", nodes[1])
	k.wantStarts(2)
	k.kubectl("delete", "pods", "--all")
	k.wantStarts(3)

	if out, err := c.Plimsoll("down"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := c.Up(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	k.wantStarts(4)
	if is := k.places(nodes); is != was {
		t.Errorf("pods are on %v after down and up, were on %v", is, was)
	}
	t.Run("registered again", func(t *testing.T) { k.at(t).registeredAgain(nodes[1]) })
	k.kubectl("delete", "statefulsets,pods", "--all")
	k.kubectl("delete", "persistentvolumeclaims", "--all", "--wait=false")
	rig.Eventually(t, soon, "no node keeps a volume", func(context.Context) error {
		for _, node := range nodes {
			if kept, err := os.ReadDir(filepath.Join(k.volumes(node), "volumes")); err != nil || len(kept) > 0 {
				return fmt.Errorf("%s: %v, %v", node, kept, err)
			}
		}
		return nil
	})
	t.Run("fewer", func(t *testing.T) { k.at(t).fewer(nodes[1]) })
}

func (k keepers) at(t *testing.T) keepers {
	k.t = t
	return k
}

func (k keepers) kubectl(args ...string) string {
	k.t.Helper()
	return k.Kubectl(k.t, append([]string{"--namespace", k.ns}, args...)...)
}

// volumes returns the directory of a node's driver.
func (k keepers) volumes(node string) string {
	if node == k.NodeName {
		return filepath.Join(k.StateDir, "volumes")
	}
	return filepath.Join(k.StateDir, "nodes", "2", "volumes")
}

// published waits until a node's driver is in its CSINode, its label says where it is, and the cluster knows how much
// room it has.
func (k keepers) published(node string) {
	k.t.Helper()
	rig.Eventually(k.t, soon, "the driver of "+node, func(ctx context.Context) error {
		csiNode, err := k.API.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d := csiNode.Spec.Drivers; len(d) != 1 || d[0].Name != csi.Name || len(d[0].TopologyKeys) != 1 ||
			d[0].TopologyKeys[0] != csi.TopologyKey {
			return fmt.Errorf("CSINode has %+v", d)
		}
		object, err := k.API.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil || object.Labels[csi.TopologyKey] != node {
			return fmt.Errorf("label %q, %v", object.Labels[csi.TopologyKey], err)
		}
		rooms, err := k.API.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, room := range rooms.Items {
			if room.NodeTopology != nil && room.NodeTopology.MatchLabels[csi.TopologyKey] == node && room.Capacity != nil {
				return nil
			}
		}
		return fmt.Errorf("none of %d CSIStorageCapacity objects is of this node", len(rooms.Items))
	})
}

// wantStarts waits until both pods run, and their volumes say that they have started n times.
func (k keepers) wantStarts(n int) {
	k.t.Helper()
	for _, pod := range []string{"keeper-0", "keeper-1"} {
		rig.Eventually(k.t, soon, fmt.Sprintf("the volume of %s has %d lines", pod, n), func(context.Context) error {
			out, err := k.TryKubectl(k.t, "--namespace", k.ns, "exec", pod, "--", "/workload", "cat", "/data/starts")
			if err != nil {
				return err
			}
			if got := strings.Count(out, "started"); got != n {
				return fmt.Errorf("it has %d: %q", got, out)
			}
			return nil
		})
	}
}

// places returns the nodes of the two pods, which must be two. The volume of each admits its node only, and is in the
// directory of that node's driver.
func (k keepers) places(nodes []string) (places [2]string) {
	k.t.Helper()
	for i := range places {
		pod, err := k.API.CoreV1().Pods(k.ns).Get(k.t.Context(), fmt.Sprintf("keeper-%d", i), metav1.GetOptions{})
		if err != nil {
			k.t.Fatal(err)
		}
		places[i] = pod.Spec.NodeName
		v := k.volume(fmt.Sprintf("data-keeper-%d", i))
		if admitted := nodesOf(v); admitted != places[i] {
			k.t.Errorf("%s is on %s, its volume admits %q", pod.Name, places[i], admitted)
		}
		for _, node := range nodes {
			_, err := os.Stat(filepath.Join(k.volumes(node), "volumes", v.Spec.CSI.VolumeHandle))
			if there := err == nil; there != (node == places[i]) {
				k.t.Errorf("%s is on %s; its volume is on %s: %v", pod.Name, places[i], node, there)
			}
		}
	}
	if places[0] == places[1] {
		k.t.Fatalf("both pods are on %s", places[0])
	}
	return places
}

// volume returns the volume of a claim.
func (k keepers) volume(claim string) *corev1.PersistentVolume {
	k.t.Helper()
	object, err := k.API.CoreV1().PersistentVolumeClaims(k.ns).Get(k.t.Context(), claim, metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	v, err := k.API.CoreV1().PersistentVolumes().Get(k.t.Context(), object.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return v
}

// nodesOf returns the nodes that a volume admits, by the driver's label.
func nodesOf(v *corev1.PersistentVolume) string {
	var nodes []string
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == csi.TopologyKey {
				nodes = append(nodes, e.Values...)
			}
		}
	}
	return strings.Join(nodes, ",")
}

// elsewhere: a pod that must run on one node and uses a volume of the other one waits, and an Event says why.
func (k keepers) elsewhere(places [2]string, nodes []string) {
	claim, other := "data-keeper-0", nodes[0]
	if places[0] == other {
		other = nodes[1]
	}
	pod := k.user("elsewhere", claim)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: other}
	k.create(pod)
	rig.Eventually(k.t, soon, "an Event says that the volume is not on that node", func(ctx context.Context) error {
		events, err := k.API.CoreV1().Events(k.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var said []string
		for _, e := range events.Items {
			if e.InvolvedObject.Name == pod.Name {
				said = append(said, e.Message)
				if strings.Contains(e.Message, "PersistentVolume's node affinity") {
					return nil
				}
			}
		}
		return fmt.Errorf("%q", said)
	})
	k.kubectl("delete", "pod", pod.Name)
}

// user returns a pod that uses a claim.
func (k keepers) user(name, claim string) *corev1.Pod {
	source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{
				Name:         "main",
				Image:        "plimsoll.dev/workload:dev",
				Args:         []string{"sleep", "infinity"},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{
				Name:         "data",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source},
			}},
		},
	}
}

func (k keepers) create(pod *corev1.Pod) {
	k.t.Helper()
	if _, err := k.API.CoreV1().Pods(k.ns).Create(k.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		k.t.Fatal(err)
	}
}
