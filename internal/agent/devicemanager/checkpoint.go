package devicemanager

import (
	"fmt"
	"log/slog"
	"slices"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletstate"
)

// RecoverGiven recovers the devices of a container that a kubelet created, from its checkpoint.
func (k *Manager) RecoverGiven(uid, container string, given []kubeletstate.Given) error {
	var allocations []Allocation
	for _, g := range given {
		a := Allocation{Resource: g.Resource, Nodes: map[string][]machine.NUMAID{},
			Needs: &pluginapi.ContainerAllocateResponse{}}
		if err := proto.Unmarshal(g.Needs, a.Needs); err != nil {
			return fmt.Errorf("read the kubelet's checkpoint: needs of %s: %w", g.Resource, err)
		}
		for node, ids := range g.IDs {
			for _, id := range ids {
				a.IDs = append(a.IDs, id)
				if node >= 0 && node <= int64(machine.NUMAIDMax) {
					a.Nodes[id] = append(a.Nodes[id], machine.NUMAID(node))
				}
			}
		}
		slices.Sort(a.IDs)
		a.IDs = slices.Compact(a.IDs) // a device that is near two nodes is listed with both
		for _, nodes := range a.Nodes {
			slices.Sort(nodes)
		}
		allocations = append(allocations, a)
	}
	k.store(uid, container, allocations)
	return nil
}

// Checkpoint returns what a kubelet that takes the node over has to know of devices.
func (k *Manager) Checkpoint() kubeletstate.Devices {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := kubeletstate.Devices{Registered: map[string][]string{}}
	for _, plugin := range k.state.Plugins() {
		healthy := []string{}
		for _, d := range plugin.Devices {
			if d.Healthy && !plugin.Gone {
				healthy = append(healthy, d.ID)
			}
		}
		slices.Sort(healthy)
		out.Registered[plugin.Resource] = healthy
	}
	for uid, containers := range k.allocations {
		for container, allocations := range containers {
			for _, a := range allocations {
				given, err := a.given()
				if err != nil {
					slog.Warn("a kubelet that takes this node over will not know a device of a container",
						"uid", uid, "container", container, "resource", a.Resource, "err", err)
					continue
				}
				given.Pod, given.Container = uid, container
				out.Given = append(out.Given, given)
			}
		}
	}
	return out
}

// given returns an allocation in the kubelet's form.
func (a Allocation) given() (kubeletstate.Given, error) {
	needs, err := proto.MarshalOptions{Deterministic: true}.Marshal(a.Needs)
	if err != nil {
		return kubeletstate.Given{}, err
	}
	out := kubeletstate.Given{Resource: a.Resource, IDs: map[int64][]string{}, Needs: needs}
	for _, id := range slices.Sorted(slices.Values(a.IDs)) {
		if len(a.Nodes[id]) == 0 {
			out.IDs[kubeletstate.NoNode] = append(out.IDs[kubeletstate.NoNode], id)
		}
		for _, node := range a.Nodes[id] {
			out.IDs[int64(node)] = append(out.IDs[int64(node)], id)
		}
	}
	return out, nil
}
