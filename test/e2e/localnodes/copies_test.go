//go:build e2e

package localnodes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/csi"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// copies: a clone and a restored snapshot are made on the node of their source, and their pods run there, although the
// scheduler prefers the other node. So does a clone that no pod uses, whichever node's provisioner takes its claim.
func (k keepers) copies(places [2]string, nodes []string) {
	node, other := places[0], nodes[0]
	if node == other {
		other = nodes[1]
	}
	snapshot := filepath.Join(k.t.TempDir(), "snapshot.yaml")
	err := os.WriteFile(snapshot, []byte(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: keeper}
spec:
  source: {persistentVolumeClaimName: data-keeper-0}
`), 0o600)
	if err != nil {
		k.t.Fatal(err)
	}
	k.kubectl("apply", "-f", snapshot)
	k.kubectl("wait", "volumesnapshot/keeper", "--for=jsonpath={.status.readyToUse}=true", rig.KubectlWaits)
	group := "snapshot.storage.k8s.io"
	clone := &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data-keeper-0"}
	restored := &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "keeper"}
	for name, source := range map[string]*corev1.TypedLocalObjectReference{"clone": clone, "restored": restored} {
		k.t.Run(name, func(t *testing.T) { k.at(t).copied(name, source, node, other) })
	}
	k.t.Run("without a pod", func(t *testing.T) { k.at(t).copiedAtOnce(clone, node) })
	k.kubectl("delete", "volumesnapshot/keeper")
}

// copied: a pod that prefers one node gets a copy of a volume of the other one, and runs there.
func (k keepers) copied(name string, source *corev1.TypedLocalObjectReference, node, preferred string) {
	k.claim(name, source, "")
	pod := k.user(name, name)
	pod.Spec.Containers[0].Args = []string{"cat", "/data/starts"}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100,
			Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key:      corev1.LabelHostname,
				Operator: corev1.NodeSelectorOpIn,
				Values:   []string{preferred},
			}}},
		}},
	}}
	k.create(pod)
	k.kubectl("wait", "pod/"+name, "--for=jsonpath={.status.phase}=Succeeded", rig.KubectlWaits)
	if out := k.kubectl("logs", name); strings.Count(out, "started") != 2 {
		k.t.Errorf("the copy has %q, want two lines", out)
	}
	done, err := k.API.CoreV1().Pods(k.ns).Get(k.t.Context(), name, metav1.GetOptions{})
	if err != nil || done.Spec.NodeName != node || nodesOf(k.volume(name)) != node {
		k.t.Errorf("the pod ran on %s, its volume admits %s, the source is on %s: %v", done.Spec.NodeName,
			nodesOf(k.volume(name)), node, err)
	}
	// Otherwise the test has not shown what happens after a wrong choice.
	if said := k.saidOf(name); !strings.Contains(said, fmt.Sprintf("The source of the volume is on node %q.", node)) {
		k.t.Errorf("no Event of the claim says that the source is on %s: %q", node, said)
	}
	k.kubectl("delete", "pod/"+name, "persistentvolumeclaim/"+name)
}

// copiedAtOnce: a claim of a class that does not wait for a pod gets its copy on the node of the source.
func (k keepers) copiedAtOnce(source *corev1.TypedLocalObjectReference, node string) {
	at := storagev1.VolumeBindingImmediate
	classes := k.API.StorageV1().StorageClasses()
	class, err := classes.Create(k.t.Context(), &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{GenerateName: "at-once-"},
		Provisioner:       csi.Name,
		VolumeBindingMode: &at,
	}, metav1.CreateOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	// Any of the two provisioners may take a claim first, so there are several.
	const claims = 4
	for i := range claims {
		k.claim(fmt.Sprint("at-once-", i), source, class.Name)
	}
	for i := range claims {
		name := fmt.Sprint("at-once-", i)
		k.kubectl("wait", "persistentvolumeclaim/"+name, "--for=jsonpath={.status.phase}=Bound", rig.KubectlWaits)
		if on := nodesOf(k.volume(name)); on != node {
			k.t.Errorf("the volume of %s is on %s, its source on %s", name, on, node)
		}
		k.kubectl("delete", "persistentvolumeclaim/"+name)
	}
	if err := classes.Delete(k.t.Context(), class.Name, metav1.DeleteOptions{}); err != nil {
		k.t.Error(err)
	}
}

// claim makes a claim for a copy; an empty class is the default one.
func (k keepers) claim(name string, source *corev1.TypedLocalObjectReference, class string) {
	k.t.Helper()
	claims := k.API.CoreV1().PersistentVolumeClaims(k.ns)
	original, err := claims.Get(k.t.Context(), "data-keeper-0", metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: original.Spec}
	claim.Spec.VolumeName = ""
	claim.Spec.DataSource = source
	claim.Spec.DataSourceRef = nil
	if class != "" {
		claim.Spec.StorageClassName = &class
	}
	if _, err := claims.Create(k.t.Context(), claim, metav1.CreateOptions{}); err != nil {
		k.t.Fatal(err)
	}
}

// saidOf returns the messages of Events about a claim.
func (k keepers) saidOf(claim string) string {
	k.t.Helper()
	events, err := k.API.CoreV1().Events(k.ns).List(k.t.Context(), metav1.ListOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	var said []string
	for _, e := range events.Items {
		if e.InvolvedObject.Kind == "PersistentVolumeClaim" && e.InvolvedObject.Name == claim {
			said = append(said, e.Message)
		}
	}
	return strings.Join(said, "\n")
}

// registeredAgain: the rooms of a node go with its Node object. The agent registers the node again, and it has rooms of
// the new object.
func (k keepers) registeredAgain(node string) {
	was, err := k.API.CoreV1().Nodes().Get(k.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	if owners := k.ownersOfRooms(k.t.Context(), node); len(owners) == 0 || !owners[was.UID] {
		k.t.Fatalf("the rooms of %s belong to %v, want %s", node, owners, was.UID)
	}
	k.kubectl("delete", "node", node)
	rig.Eventually(k.t, soon, "the room of the new Node", func(ctx context.Context) error {
		is, err := k.API.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if owners := k.ownersOfRooms(ctx, node); is.UID == was.UID || len(owners) != 1 || !owners[is.UID] {
			return fmt.Errorf("rooms belong to %v; the Node was %s and is %s", owners, was.UID, is.UID)
		}
		return nil
	})
}

// ownersOfRooms returns the owners of a node's CSIStorageCapacity objects. It asks by kubectl, because the server has
// another address when it is up with fewer nodes.
func (k keepers) ownersOfRooms(ctx context.Context, node string) map[types.UID]bool {
	owners := map[types.UID]bool{}
	var rooms storagev1.CSIStorageCapacityList
	out, err := k.KubectlCommand(ctx, "get", "csistoragecapacities", "-n", metav1.NamespaceSystem, "-o", "json").Output()
	if err == nil {
		err = json.Unmarshal(out, &rooms)
	}
	if err != nil {
		k.t.Error(err)
		return nil
	}
	for _, room := range rooms.Items {
		if room.NodeTopology == nil || room.NodeTopology.MatchLabels[csi.TopologyKey] != node {
			continue
		}
		if len(room.OwnerReferences) == 0 {
			owners[""] = true
		}
		for _, o := range room.OwnerReferences {
			owners[o.UID] = true
		}
	}
	return owners
}

// fewer: a node that is removed takes the objects with it that say how much room it has.
func (k keepers) fewer(node string) {
	k.again(1)
	rig.Eventually(k.t, soon, "no room of "+node, func(ctx context.Context) error {
		if owners := k.ownersOfRooms(ctx, node); len(owners) > 0 {
			return fmt.Errorf("there are some, of %v", owners)
		}
		return nil
	})
	if owners := k.ownersOfRooms(k.t.Context(), k.NodeName); len(owners) != 1 {
		k.t.Errorf("the rooms of the other node belong to %v", owners)
	}
	k.again(2) // the test's clients know the address that the server has with several nodes
}

// again takes the cluster down and up again, with so many nodes.
func (k keepers) again(nodes int) {
	k.t.Helper()
	if out, err := k.Plimsoll("down"); err != nil {
		k.t.Fatalf("%v: %s", err, out)
	}
	if out, err := k.UpWith(rig.Binary(k.t), "--nodes", strconv.Itoa(nodes)); err != nil {
		k.t.Fatalf("%v\n%s", err, out)
	}
}
