package agent

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/node"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// declaredFeatures are the features that a node of Kubernetes 1.36 must declare before the API server accepts users'
// requests for them (resizes of pod-level resources and of init containers), or before a scheduler sends a pod that
// needs them (rules that restart all containers).
var declaredFeatures = []string{
	"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
	"RestartAllContainersOnContainerExits",
}

// prepareNode prepares the part that reports the Node's status and Lease.
func (a *Agent) prepareNode(context.Context) error {
	c := a.o.Config
	serving, err := netip.ParseAddr(c.Address)
	if err != nil {
		return fmt.Errorf("read kubelet configuration: address %q: %w", c.Address, err)
	}
	addresses := node.Addresses{Hostname: a.o.NodeName, NodeIPs: a.o.NodeIPs, Serving: serving}.ThisMachine()
	a.addresses = addresses.Find
	var cloud *node.Cloud
	if a.o.Cloud {
		cloud = &node.Cloud{NodeIPs: a.o.NodeIPs}
	}
	o := nodeOptions(c)
	o.Name = a.o.NodeName
	o.API = a.heartbeats
	o.Runtime = a.runtime
	o.Images = a.runtime.Images
	o.Recorder = a.recorder
	o.Machine = a.machine
	o.Resources = a.resources
	o.Announce = a.assignments.Announce
	o.Exists = a.drivers.NodeExists
	o.CSIVolumes = true
	o.VolumesInUse = a.csiVolumes.VolumesInUse
	o.Received = func(n *corev1.Node) {
		a.csiVolumes.NodeStatus(&n.Status)
		a.csiVolumes.Told(translate.ClaimsToGrow(n))
		a.podCIDRs.receive(n.Spec.PodCIDRs)
	}
	o.Addresses = addresses.Find
	o.Cloud = cloud
	o.Startup = a.metrics.Startup
	o.Plugins = a.plugins
	o.Labels = a.o.Labels
	o.DeclaredFeatures = declaredFeatures
	o.UserNamespaces = func() bool { return a.hasUsers } // set before the first report
	o.ShuttingDown = a.shuttingDown
	o.MainLoop = func() time.Time { return a.pods.LastRead() }
	o.Pressure = a.pressure
	a.metrics.Registry.MustRegister(resourceMetrics{a.resources}, stallMetrics{"/proc/pressure"})
	a.node, err = node.New(o)
	return err
}

// hostIPs returns the node's internal IP addresses, as published in the Node.
func (a *Agent) hostIPs() ([]string, error) {
	all, err := a.addresses()
	if err != nil {
		return nil, err
	}
	var ips []string
	for _, address := range all {
		if address.Type == corev1.NodeInternalIP {
			ips = append(ips, address.Address)
		}
	}
	return ips, nil
}

// allocatable returns the node's allocatable resources, and the resources that other programs added to the Node
// (extended resources).
func (a *Agent) allocatable() corev1.ResourceList {
	_, own := translate.NodeResources(a.resources)
	if n := a.node.Node(); n != nil {
		for name, quantity := range n.Status.Allocatable {
			if _, ours := own[name]; !ours {
				own[name] = quantity
			}
		}
	}
	return own
}

// nodeLabels returns the Node's labels as the watch last delivered them.
func (a *Agent) nodeLabels() map[string]string {
	if n := a.node.Node(); n != nil {
		return n.Labels
	}
	return nil
}

// nodeNow reads the agent's own Node from the API server, with the labels and taints that it has now. Its allocatable
// resources are the ones that the watch delivered last.
func (a *Agent) nodeNow(ctx context.Context) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	node := &corev1.Node{}
	if err := a.client.Get(ctx, kube.Nodes, "", a.o.NodeName, node); err != nil {
		return nil, err
	}
	if seen := a.node.Node(); seen != nil {
		node.Status.Allocatable = seen.Status.Allocatable
	}
	return node, nil
}

// nodeUID returns the UID of the Node object at present.
func (a *Agent) nodeUID(ctx context.Context) (types.UID, error) {
	node, err := a.nodeNow(ctx)
	if err != nil {
		return "", err
	}
	return node.UID, nil
}
