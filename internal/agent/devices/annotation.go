package devices

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
)

// Annotation is the container's annotation that holds its devices: a JSON list with an entry for each resource,
//
//	{"resource": "example.com/gpu", "ids": ["gpu0"], "nodes": {"gpu0": [0]}, "needs": "<ContainerAllocateResponse, protobuf in base64>"}
const Annotation = "plimsoll.dev/devices"

type heldText struct {
	Resource string                      `json:"resource"`
	IDs      []string                    `json:"ids"`
	Nodes    map[string][]machine.NUMAID `json:"nodes,omitempty"`
	Needs    []byte                      `json:"needs,omitempty"`
}

// write returns the annotation's value.
func write(held []Held) (string, error) {
	var out []heldText
	for _, h := range held {
		needs, err := proto.MarshalOptions{Deterministic: true}.Marshal(h.Needs)
		if err != nil {
			return "", fmt.Errorf("write annotation %s: %s: %w", Annotation, h.Resource, err)
		}
		out = append(out, heldText{h.Resource, h.IDs, h.Nodes, needs})
	}
	text, err := json.Marshal(out)
	return string(text), err
}

// read is the reverse of write.
func read(text string) ([]Held, error) {
	var in []heldText
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return nil, fmt.Errorf("read annotation %s: %w", Annotation, err)
	}
	var out []Held
	for i, h := range in {
		if h.Resource == "" || len(h.IDs) == 0 {
			return nil, fmt.Errorf("read annotation %s: entry %d: resource %q with %d ids: want a name and at least one", Annotation, i, h.Resource, len(h.IDs))
		}
		needs := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(h.Needs, needs); err != nil {
			return nil, fmt.Errorf("read annotation %s: entry %d: needs of %s: %w", Annotation, i, h.Resource, err)
		}
		out = append(out, Held{h.Resource, h.IDs, h.Nodes, needs})
	}
	return out, nil
}

// Found takes in a container's annotations, of the newest container of its name: what it was made with is what it holds. It
// returns the devices, for whoever keeps account of them. What this agent gave itself stays.
func (k *Keeper) Found(uid, container string, annotations map[string]string) ([]numa.Devices, error) {
	text, ok := annotations[Annotation]
	if !ok {
		return nil, nil
	}
	held, err := read(text)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[uid] == nil {
		k.held[uid] = map[string][]Held{}
	}
	if known, ok := k.held[uid][container]; ok {
		held = known
	}
	k.held[uid][container] = held
	var out []numa.Devices
	for _, h := range held {
		out = append(out, numa.Devices{Resource: h.Resource, IDs: h.IDs})
	}
	return out, nil
}
