package node

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
)

// annotationPlugins names the resources that device plugins of this node have, or had: a list with commas. It is how
// the next agent tells them from resources that somebody else put into the Node's status, which are not its business.
const annotationPlugins = "plimsoll.dev/device-plugins"

// notePlugins writes the annotation.
func (k *Keeper) notePlugins(node *corev1.Node) {
	if k.o.Plugins == nil {
		return
	}
	amounts, known := k.o.Plugins.Amounts()
	if !known {
		return // it may have names that we have not read yet
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

// fillDevices publishes what plugins have.
func fillDevices(s *corev1.NodeStatus, amounts []devicemanager.Amount) {
	for _, a := range amounts {
		name := corev1.ResourceName(a.Resource)
		s.Capacity[name] = *resource.NewQuantity(int64(a.Capacity), resource.DecimalSI)
		s.Allocatable[name] = *resource.NewQuantity(int64(a.Allocatable), resource.DecimalSI)
	}
}

// allotOthers makes the extended resources of the capacity allocatable, and those that have left it no longer.
func allotOthers(s *corev1.NodeStatus) {
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

// isExtended reports whether a resource is one that Kubernetes itself knows nothing of.
func isExtended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), "kubernetes.io/")
}

// recall tells what the Node says of plugins' resources; nil is a Node that we have just made.
func (k *Keeper) recall(theirs *corev1.Node) {
	if k.o.Plugins != nil {
		k.o.Plugins.Recall(recalled(theirs))
	}
}

// recalled returns what a Node says of plugins' resources: those of our annotation. A Node that a kubelet kept has
// none; then every extended resource counts as a plugin's, as upstream has it for a node without a checkpoint.
func recalled(node *corev1.Node) []devicemanager.Amount {
	if node == nil {
		return nil
	}
	ours, noted := node.Annotations[annotationPlugins]
	kubelets := !noted && node.Status.NodeInfo.KubeletVersion != "" && !strings.Contains(node.Status.NodeInfo.KubeletVersion, "+plimsoll")
	names := strings.Split(ours, ",")
	var out []devicemanager.Amount
	for name, quantity := range node.Status.Capacity {
		if isExtended(name) && (kubelets || noted && slices.Contains(names, string(name))) {
			out = append(out, devicemanager.Amount{Resource: string(name), Capacity: int(quantity.Value())})
		}
	}
	return out
}
