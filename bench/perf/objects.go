package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Upstream runs its workloads on an API server without the admission plugins ServiceAccount, TaintNodesByCondition and
// Priority. The API server of plimsoll up has them. Therefore:
//   - each namespace gets a service account whose token is not mounted, and pods name it, so that a later update names
//     it, too;
//   - a new node gets the taints of its template and no others;
//   - a priority becomes a PriorityClass with that value.

// serviceAccount is the name that the admission plugin would set.
const serviceAccount = "default"

// writer creates objects.
type writer struct {
	client  kubernetes.Interface
	dynamic dynamic.Interface
	mu      sync.Mutex
	classes map[int32]bool // priorities for which a PriorityClass exists
}

// namespace creates a namespace with its service account.
func (w *writer) namespace(ctx context.Context, n *corev1.Namespace) error {
	if _, err := w.client.CoreV1().Namespaces().Create(ctx, n, metav1.CreateOptions{}); err != nil {
		return err
	}
	no := false
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: serviceAccount},
		AutomountServiceAccountToken: &no}
	_, err := w.client.CoreV1().ServiceAccounts(n.Name).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // kube-controller-manager may have created it
		return nil
	}
	return err
}

// priority makes sure that there is a PriorityClass with this value, and returns its name.
func (w *writer) priority(ctx context.Context, value int32) (string, error) {
	name := fmt.Sprintf("priority-%d", value)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.classes[value] {
		return name, nil
	}
	_, err := w.client.SchedulingV1().PriorityClasses().Create(ctx,
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	w.classes[value] = true
	return name, nil
}

// pod creates a pod.
func (w *writer) pod(ctx context.Context, namespace string, p *corev1.Pod) error {
	p.Spec.ServiceAccountName = serviceAccount
	if p.Spec.Priority != nil {
		class, err := w.priority(ctx, *p.Spec.Priority)
		if err != nil {
			return err
		}
		p.Spec.Priority, p.Spec.PriorityClassName = nil, class
	}
	return patiently(ctx, func() error {
		_, err := w.client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
}

// The admission plugin learns of a new PriorityClass by a watch, some time after it was created.
const (
	classPause = 50 * time.Millisecond
	classMax   = 10 * time.Second
)

// patiently creates an object, and tries again while the admission plugin does not know its PriorityClass.
func patiently(ctx context.Context, do func() error) error {
	for began := time.Now(); ; {
		err := do()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "no PriorityClass") || time.Since(began) > classMax {
			return err
		}
		select {
		case <-time.After(classPause):
		case <-ctx.Done():
			return err
		}
	}
}

// baseNode and basePod are what operations without a template create: a node with 4 CPUs, 32 GiB and 110 pods; a pod
// with a tenth of a CPU and 500 MiB (upstream's makeBaseNode and MakePodSpec).
func baseNode(prefix string) *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourcePods:   resource.MustParse("110"),
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("32Gi"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{GenerateName: prefix},
		Status: corev1.NodeStatus{
			Capacity:    room,
			Allocatable: room.DeepCopy(),
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func basePod() *corev1.Pod {
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
		corev1.ResourceMemory: resource.MustParse("500Mi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:      "pause",
			Image:     "registry.k8s.io/pause:3.10.2",
			Ports:     []corev1.ContainerPort{{ContainerPort: 80}},
			Resources: corev1.ResourceRequirements{Limits: room, Requests: room.DeepCopy()},
		}}},
	}
}

// dress sets on the i-th node of an operation what the operation's strategies say, and its host name.
func (s *createNodes) dress(n *corev1.Node, i int) error {
	if n.Name == "" {
		n.Name = n.GenerateName + rand.String(nameTail)
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelHostname] = n.Name
	switch {
	case s.NodeAllocatableStrategy != nil:
		if n.Status.Allocatable == nil {
			n.Status.Allocatable = n.Status.Capacity.DeepCopy()
		}
		for name, amount := range s.NodeAllocatableStrategy.NodeAllocatable {
			q, err := resource.ParseQuantity(amount)
			if err != nil {
				return fmt.Errorf("nodeAllocatable: %s: %q: %w", name, amount, err)
			}
			n.Status.Allocatable[corev1.ResourceName(name)] = q
		}
	case s.LabelNodePrepareStrategy != nil && len(s.LabelNodePrepareStrategy.LabelValues) > 0:
		l := s.LabelNodePrepareStrategy
		n.Labels[l.LabelKey] = l.LabelValues[i%len(l.LabelValues)]
	case s.UniqueNodeLabelStrategy != nil:
		n.Labels[s.UniqueNodeLabelStrategy.LabelKey] = n.Name
	}
	return nil
}

// nameTail is how many random characters the names of nodes have. Upstream has 5, and tries again if a name exists.
const nameTail = 10

// node creates a node with its own taints and no others, and a CSINode if the operation says so.
func (w *writer) node(ctx context.Context, n *corev1.Node, storage *nodeAllocatable) error {
	if _, err := w.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := w.taint(ctx, n.Name, n.Spec.Taints); err != nil || storage == nil {
		return err
	}
	c := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name:        n.Name,
		Annotations: map[string]string{corev1.MigratedPluginsAnnotationKey: strings.Join(storage.MigratedPlugins, ",")},
	}}
	for driver, limit := range storage.CsiNodeAllocatable {
		c.Spec.Drivers = append(c.Spec.Drivers, storagev1.CSINodeDriver{Name: driver, NodeID: n.Name, Allocatable: limit})
	}
	_, err := w.client.StorageV1().CSINodes().Create(ctx, c, metav1.CreateOptions{})
	return err
}

// taint replaces the taints that the admission plugin has added to a new node.
func (w *writer) taint(ctx context.Context, node string, taints []corev1.Taint) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// claimed creates a volume and a claim that are bound to each other, and makes the pod mount the claim.
func (w *writer) claimed(ctx context.Context, namespace string, i int, v *corev1.PersistentVolume,
	c *corev1.PersistentVolumeClaim, p *corev1.Pod) error {
	c.Name, v.Name = fmt.Sprintf("pvc-%d", i), fmt.Sprintf("%s-vol-%d", namespace, i)
	switch {
	case v.Spec.CSI != nil:
		v.Spec.CSI.VolumeHandle = v.Name
	case v.Spec.AWSElasticBlockStore != nil:
		v.Spec.AWSElasticBlockStore.VolumeID = fmt.Sprintf("vol-%d", i)
	}
	v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace,
		Name: c.Name}
	c.Spec.VolumeName = v.Name
	claims, volumes := w.client.CoreV1().PersistentVolumeClaims(namespace), w.client.CoreV1().PersistentVolumes()
	c, err := claims.Create(ctx, c, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	c.Status.Phase = corev1.ClaimBound
	if _, err := claims.UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if v, err = volumes.Create(ctx, v, metav1.CreateOptions{}); err != nil {
		return err
	}
	v.Status.Phase = corev1.VolumeBound
	if _, err := volumes.UpdateStatus(ctx, v, metav1.UpdateOptions{}); err != nil {
		return err
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "vol", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name},
	}}}
	return nil
}

// kinds are the kinds that operations on any object use.
var kinds = map[schema.GroupVersionKind]struct {
	resource   string
	namespaced bool
}{
	{Version: "v1", Kind: "Node"}:    {"nodes", false},
	{Version: "v1", Kind: "Pod"}:     {"pods", true},
	{Version: "v1", Kind: "Service"}: {"services", true},
}

// at returns the client for objects like u, and changes u so that admission accepts it.
func (w *writer) at(ctx context.Context, namespace string,
	u *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := u.GroupVersionKind()
	k, ok := kinds[gvk]
	if !ok {
		return nil, fmt.Errorf("object of kind %s: not known here: add it to kinds", gvk)
	}
	if gvk.Kind == "Pod" {
		if err := unstructured.SetNestedField(u.Object, serviceAccount, "spec", "serviceAccountName"); err != nil {
			return nil, err
		}
		if p, ok, _ := unstructured.NestedInt64(u.Object, "spec", "priority"); ok {
			class, err := w.priority(ctx, int32(p))
			if err != nil {
				return nil, err
			}
			unstructured.RemoveNestedField(u.Object, "spec", "priority")
			if err := unstructured.SetNestedField(u.Object, class, "spec", "priorityClassName"); err != nil {
				return nil, err
			}
		}
	}
	all := w.dynamic.Resource(gvk.GroupVersion().WithResource(k.resource))
	if !k.namespaced {
		return all, nil
	}
	return all.Namespace(namespace), nil
}

// any creates an object and returns its name.
func (w *writer) any(ctx context.Context, namespace string, u *unstructured.Unstructured) (string, error) {
	client, err := w.at(ctx, namespace, u)
	if err != nil {
		return "", err
	}
	var made *unstructured.Unstructured
	err = patiently(ctx, func() (err error) {
		made, err = client.Create(ctx, u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		return err
	})
	if err != nil {
		return "", err
	}
	if u.GetKind() == "Node" {
		n := corev1.Node{}
		text, err := u.MarshalJSON()
		if err == nil {
			err = json.Unmarshal(text, &n)
		}
		if err != nil {
			return "", err
		}
		return made.GetName(), w.taint(ctx, made.GetName(), n.Spec.Taints)
	}
	return made.GetName(), nil
}
