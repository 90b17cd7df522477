package main

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
)

// asked is a provisioner that notes whether it was asked, and fails.
type asked struct{ times int }

var errAsked = errors.New("asked")

func (a *asked) Provision(
	context.Context, controller.ProvisionOptions,
) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	a.times++
	return nil, controller.ProvisioningFinished, errAsked
}

func (*asked) Delete(context.Context, *corev1.PersistentVolume) error { return nil }

const testDriver = "csi.plimsoll.dev"

// volumeOn is a volume of a node, whose claim is called as the volume.
func volumeOn(name, driver, node string) []runtime.Object {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: "plimsoll.dev/node", Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		}}}},
	}}
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	c.Spec.VolumeName = name
	return []runtime.Object{v, c}
}

// snapshotOn is a snapshot, with its content, that a node manages.
func snapshotOn(name, driver, node string) []runtime.Object {
	content := name + "-content"
	return []runtime.Object{
		&snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &content},
		},
		&snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{
				Name:   content,
				Labels: map[string]string{utils.VolumeSnapshotContentManagedByLabel: node},
			},
			Spec: snapshotv1.VolumeSnapshotContentSpec{Driver: driver},
		},
	}
}

// TestSourceElsewhere: a claim whose source is on another node is handed to that node. All others are left to
// upstream's provisioner.
func TestSourceElsewhere(t *testing.T) {
	clone := func(of string) *corev1.TypedLocalObjectReference {
		return &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: of}
	}
	restore := func(of string) *corev1.TypedLocalObjectReference {
		return &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: of}
	}
	for name, c := range map[string]struct {
		source *corev1.TypedLocalObjectReference
		ref    bool   // the source is in dataSourceRef
		now    string // the selected node that the API server has meanwhile; empty: still a
		want   string // the selected node afterwards
		asked  bool   // upstream's provisioner is asked
	}{
		"no source":                     {want: "a", asked: true},
		"a clone of a volume here":      {source: clone("here"), want: "a", asked: true},
		"a clone of another node's":     {source: clone("there"), want: "b"},
		"by dataSourceRef":              {source: clone("there"), ref: true, want: "b"},
		"a clone of a removed node's":   {source: clone("gone"), want: "a", asked: true},
		"a clone of another driver's":   {source: clone("foreign"), want: "a", asked: true},
		"a clone of nothing":            {source: clone("nothing"), want: "a", asked: true},
		"a snapshot here":               {source: restore("here"), want: "a", asked: true},
		"a snapshot of another node":    {source: restore("there"), want: "b"},
		"a snapshot of a removed node":  {source: restore("gone"), want: "a", asked: true},
		"a snapshot of another driver":  {source: restore("foreign"), want: "a", asked: true},
		"a snapshot that is missing":    {source: restore("nothing"), want: "a", asked: true},
		"another node was selected now": {source: clone("there"), now: "c", want: "c"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "copy", UID: "1", Annotations: map[string]string{selectedNode: "a"},
			}}
			if c.ref {
				claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: c.source.Kind, Name: c.source.Name}
			} else {
				claim.Spec.DataSource = c.source
			}
			stored := claim.DeepCopy()
			if c.now != "" {
				stored.Annotations[selectedNode] = c.now
			}
			inner := &asked{}
			b, events := provisionerOf(t, inner, stored)
			_, _, err := b.Provision(t.Context(), controller.ProvisionOptions{PVC: claim, SelectedNodeName: "a"})
			if c.asked != (inner.times == 1) || c.asked != errors.Is(err, errAsked) {
				t.Errorf("upstream's provisioner was asked %d times, want %v; %v", inner.times, c.asked, err)
			}
			if ignored := new(controller.IgnoredError); !c.asked && !errors.As(err, &ignored) {
				t.Errorf("%v: want an error that is ignored", err)
			}
			is, err := b.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "copy", metav1.GetOptions{})
			if err != nil || is.Annotations[selectedNode] != c.want {
				t.Errorf("selected is %q, want %q; %v", is.Annotations[selectedNode], c.want, err)
			}
			if said := len(events) > 0; said != (c.want == "b") {
				t.Errorf("an Event was written: %v", said)
			}
		})
	}
}

// provisionerOf is the provisioner of node a, in a cluster with nodes a and b.
func provisionerOf(t *testing.T, inner *asked, claim *corev1.PersistentVolumeClaim) (*besideSource, chan string) {
	t.Helper()
	objects := []runtime.Object{claim}
	for _, node := range []string{"a", "b"} {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: node, Labels: map[string]string{"plimsoll.dev/node": node},
		}})
	}
	var snapshots []runtime.Object
	for _, v := range []struct{ name, driver, node string }{
		{"here", testDriver, "a"}, {"there", testDriver, "b"}, {"gone", testDriver, "z"}, {"foreign", "other", "b"},
	} {
		objects = append(objects, volumeOn(v.name, v.driver, v.node)...)
		snapshots = append(snapshots, snapshotOn(v.name, v.driver, v.node)...)
	}
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	claims, volumes := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes()
	claims.Informer()
	volumes.Informer()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	recorder := record.NewFakeRecorder(1)
	return &besideSource{
		Provisioner: inner,
		client:      client,
		snapshots:   snapshotfake.NewSimpleClientset(snapshots...),
		claims:      claims.Lister(),
		volumes:     volumes.Lister(),
		events:      recorder,
		driver:      testDriver,
		node:        "a",
		here:        map[string]string{"plimsoll.dev/node": "a"},
	}, recorder.Events
}

// TestAwaitNode: the process waits for its Node, and notices when it is deleted or replaced.
func TestAwaitNode(t *testing.T) {
	for name, replaced := range map[string]bool{"deleted": false, "replaced": true} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}}
			client := fake.NewClientset()
			s := &shared{options: options{node: "a"}, client: client}
			made := make(chan error, 1)
			go func() {
				_, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
				made <- err
			}()
			gone, err := s.awaitNode(t.Context())
			if err := errors.Join(err, <-made); err != nil {
				t.Fatal(err)
			}
			if s.owner.UID != "1" || s.owner.Kind != "Node" || s.owner.Controller == nil || !*s.owner.Controller {
				t.Errorf("the owner is %+v", s.owner)
			}
			select {
			case <-gone:
				t.Fatal("the Node counts as gone")
			default:
			}
			if replaced {
				other := node.DeepCopy()
				other.UID = "2"
				_, err = client.CoreV1().Nodes().Update(t.Context(), other, metav1.UpdateOptions{})
			} else {
				err = client.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			<-gone
		})
	}
}
