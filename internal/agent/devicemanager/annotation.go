package devicemanager

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
)

// Annotation is the container's annotation that stores its devices: a JSON list with one entry per resource,
//
//	{"resource": "example.com/gpu", "ids": ["gpu0"], "nodes": {"gpu0": [0]}, "needs": "<ContainerAllocateResponse, protobuf in base64>"}
const Annotation = "plimsoll.dev/devices"

type storedAllocation struct {
	Resource string                      `json:"resource"`
	IDs      []string                    `json:"ids"`
	Nodes    map[string][]machine.NUMAID `json:"nodes,omitempty"`
	Needs    []byte                      `json:"needs,omitempty"`
}

// write returns the annotation's value.
func write(allocations []Allocation) (string, error) {
	var out []storedAllocation
	for _, h := range allocations {
		needs, err := proto.MarshalOptions{Deterministic: true}.Marshal(h.Needs)
		if err != nil {
			return "", fmt.Errorf("write annotation %s: %s: %w", Annotation, h.Resource, err)
		}
		out = append(out, storedAllocation{Resource: h.Resource, IDs: h.IDs, Nodes: h.Nodes, Needs: needs})
	}
	text, err := json.Marshal(out)
	return string(text), err
}

// read is the reverse of write.
func read(text string) ([]Allocation, error) {
	var in []storedAllocation
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return nil, fmt.Errorf("read annotation %s: %w", Annotation, err)
	}
	var out []Allocation
	for i, h := range in {
		if h.Resource == "" || len(h.IDs) == 0 {
			return nil, fmt.Errorf("read annotation %s: entry %d: resource %q with %d ids: want a name and at least one",
				Annotation, i, h.Resource, len(h.IDs))
		}
		needs := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(h.Needs, needs); err != nil {
			return nil, fmt.Errorf("read annotation %s: entry %d: needs of %s: %w", Annotation, i, h.Resource, err)
		}
		out = append(out, Allocation{Resource: h.Resource, IDs: h.IDs, Nodes: h.Nodes, Needs: needs})
	}
	return out, nil
}

// Recover recovers the devices of a container that an earlier agent created, from its annotation. Of several
// containers with the same name it must be called for the newest.
func (k *Manager) Recover(uid, container, annotation string) error {
	allocations, err := read(annotation)
	if err != nil {
		return err
	}
	k.store(uid, container, allocations)
	return nil
}
