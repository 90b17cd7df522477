package node

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
)

// annotationPlugins lists the resources that device plugins of this node have or had, separated by commas. By it the
// next agent distinguishes them from resources that another component put into the Node's status and that the agent
// must not change.
const annotationPlugins = "plimsoll.dev/device-plugins"

// annotatePlugins writes the annotation.
func (k *Reporter) annotatePlugins(node *corev1.Node) {
	if k.o.Plugins == nil {
		return
	}
	amounts, known := k.o.Plugins.Amounts()
	if !known {
		return // the annotation may have names that were not read yet
	}
	var names []string
	for _, a := range amounts {
		names = append(names, a.Resource)
	}
	if len(names) == 0 {
		delete(node.Annotations, annotationPlugins)
		return
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[annotationPlugins] = strings.Join(names, ",")
}

// fillDevices publishes the plugins' devices.
func fillDevices(s *corev1.NodeStatus, amounts []devicemanager.Amount) {
	for _, a := range amounts {
		name := corev1.ResourceName(a.Resource)
		s.Capacity[name] = *resource.NewQuantity(int64(a.Capacity), resource.DecimalSI)
		s.Allocatable[name] = *resource.NewQuantity(int64(a.Allocatable), resource.DecimalSI)
	}
}

// setExtendedAllocatable makes the extended resources in the capacity allocatable, and removes those that are no longer
// in the capacity.
func setExtendedAllocatable(s *corev1.NodeStatus) {
	for name := range s.Allocatable {
		if _, has := s.Capacity[name]; isExtended(name) && !has {
			delete(s.Allocatable, name)
		}
	}
	for name, quantity := range s.Capacity {
		if isExtended(name) {
			s.Allocatable[name] = quantity.DeepCopy()
		}
	}
}

// isExtended reports whether a resource is an extended one, which Kubernetes itself does not define.
func isExtended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), "kubernetes.io/")
}

// recall passes on the plugins' resources in the Node's status; theirs is nil for a Node that was created just now.
func (k *Reporter) recall(theirs *corev1.Node) {
	if k.o.Plugins != nil {
		k.o.Plugins.Recall(recalled(theirs))
	}
}

// recalled returns the plugins' resources in a Node's status: those that the annotation names. A kubelet's Node has no
// such annotation. Then every extended resource counts as a plugin's, as in a kubelet without a checkpoint.
func recalled(node *corev1.Node) []devicemanager.Amount {
	if node == nil {
		return nil
	}
	ours, noted := node.Annotations[annotationPlugins]
	kubelets := !noted && node.Status.NodeInfo.KubeletVersion != "" &&
		!strings.Contains(node.Status.NodeInfo.KubeletVersion, "+plimsoll")
	names := strings.Split(ours, ",")
	var out []devicemanager.Amount
	for name, quantity := range node.Status.Capacity {
		if isExtended(name) && (kubelets || noted && slices.Contains(names, string(name))) {
			out = append(out, devicemanager.Amount{Resource: string(name), Capacity: int(quantity.Value())})
		}
	}
	return out
}
